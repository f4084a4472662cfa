"""Collection, split and cache of the docstring corpus."""

from __future__ import annotations

import importlib.metadata
import json
import re
import string
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from examples import docstrings
from examples.docstrings import DocstringPair, collect_pairs, load_corpus, split_by_module

LONG = "The remaining text has more than enough plain words to count as one whole document"
GOOD = "Opens the gate for visitors."
# The modules, of those made up below, whose names hash (SHA-256) into the lowest tenth; twice, for two pairs each.
EXPECTED_VALIDATION_MODULES = ["pkg.module20", "pkg.module20", "pkg.module25", "pkg.module25"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an importable, empty package with a unique name, and return its folder."""
    folder = tmp_path / "site" / "docstring_sample_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def write(path: Path, source: str) -> None:
    """Write a dedented source file and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source), encoding="utf-8")


def test_package_on_disk_gives_exactly_the_expected_pairs(package: Path) -> None:
    write(
        package / "__init__.py",
        '''
        """Keeps track of borrowed books.

        Each book belongs to one shelf, and each reader may borrow up to five books at the same time.
        """
        ''',
    )
    write(
        package / "shelf.py",
        r'''
        raise RuntimeError("the file must be read, not imported")

        class Shelf:
            r"""Holds a row of :class:`~library.books.Book` objects.

            The books stand in the order of their ``title``, see `the manual <https://example.org/manual>`_ and
            :func:`sorted_books` for the **exact** rules that decide what *order* means here.

            .. versionadded:: 1.2
               It was not there before this version.

            Args:
                width (int, optional): Room on the shelf
                books (list of `Book`): First books to place

            Example::

                >>> Shelf(3)
                Shelf(width=3)
            """

            async def borrow(self, reader):
                """
                Lend a book to a reader.

                Parameters
                ----------
                reader : Reader
                    The person who takes the book home for at most four weeks.

                Returns
                -------
                bool
                    Whether the book was on the shelf.

                Examples
                --------
                The words of this section are left out.

                >>> shelf.borrow(reader)
                True

                Notes
                -----
                A borrowed book keeps its place.

                See Also
                --------
                give_back : The way back.
                """

            if True:
                def count(self):
                    """Too short."""

                def copy(self):
                    """Lend a book to a reader!

                    The summary differs from an earlier one in its punctuation only, hence this one goes.
                    """
        ''',
    )
    write(
        package / "zoo" / "animals.py",
        '''
        def feed():
            """Feeds every animal in the zoo. It starts with the elephants and it ends with the penguins, who
            are always late for dinner, because they walk slowly.
            """

        def feed_again():
            """Gives all animals their second dinner.

            it starts with the ELEPHANTS, and it ends with the penguins who are always late for dinner because
            they walk slowly
            """

        def repeat():
            """Counts the animals twice.

            This function counts the animals twice. It does so because somebody always moves while being counted.
            """
        ''',
    )
    ignored = f'"""{GOOD}\n\n{LONG}.\n"""\n'
    for path in ("tests/helpers.py", "_vendor/six.py", "test_shelf.py", "conftest.py", "not-a-module.py", "notes.txt"):
        write(package / path, ignored)
    write(package / "broken.py", ignored + "def (:\n")
    (package / "latin.py").write_bytes(ignored.encode().replace(b"gate", b"gate \xff\xfe"))

    name = package.name
    assert collect_pairs([name], include_stdlib=False) == [
        DocstringPair(
            "Each book belongs to one shelf, and each reader may borrow up to five books at the same time.",
            "Keeps track of borrowed books.",
            name,
        ),
        DocstringPair(
            "The books stand in the order of their title, see the manual and sorted_books for the exact rules that "
            "decide what order means here. Args: width: Room on the shelf. books: First books to place.",
            "Holds a row of Book objects.",
            f"{name}.shelf",
        ),
        DocstringPair(
            "Parameters: reader: The person who takes the book home for at most four weeks. "
            "Returns: bool Whether the book was on the shelf. Notes: A borrowed book keeps its place.",
            "Lend a book to a reader.",
            f"{name}.shelf",
        ),
        DocstringPair(
            "It starts with the elephants and it ends with the penguins, who are always late for dinner, because "
            "they walk slowly.",
            "Feeds every animal in the zoo.",
            f"{name}.zoo.animals",
        ),
    ]
    assert not any(module.startswith(name) for module in sys.modules)


def test_single_file_package_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "docstring_sample_module.py", f'"""{GOOD}\n\n{LONG}.\n"""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = [DocstringPair(f"{LONG}.", GOOD, "docstring_sample_module")]
    assert collect_pairs(["docstring_sample_module"], include_stdlib=False) == expected


def test_no_opening_exceeds_its_share() -> None:
    letters = string.ascii_lowercase
    names = [a + b for a in letters for b in letters]
    common = [DocstringPair(f"doc {name}", f"Return the very {name}.", "a") for name in names[:50]]
    others = [DocstringPair(f"doc of {name}", f"Make {name} now please.", "b") for name in names[:400]]
    kept = docstrings._cap_openings([*common, *others])
    # 50 + 400 pairs allow four of the common ones; the 404 that are left allow four as well.
    assert [pair for pair in kept if pair.module == "b"] == others
    left = [pair for pair in kept if pair.module == "a"]
    assert len(left) == 4
    assert left == [pair for pair in common if pair in left]
    assert kept == docstrings._cap_openings([*common, *others])


def test_few_pairs_keep_one_of_each_opening() -> None:
    pairs = [
        DocstringPair(f"doc {name}", f"Return the {word} {name}.", "a") for word in ("big", "odd") for name in "xyz"
    ]
    kept = docstrings._cap_openings(pairs)
    assert Counter(pair.summary.split()[2] for pair in kept) == {"big": 1, "odd": 1}


def test_unknown_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package_for_docstrings") as caught:
        collect_pairs(["json", "no_such_package_for_docstrings"], include_stdlib=False)
    assert caught.value.name == "no_such_package_for_docstrings"
    with pytest.raises(ModuleNotFoundError, match="no_such_package_for_docstrings"):
        load_corpus(tmp_path, packages=["no_such_package_for_docstrings"])
    assert list(tmp_path.iterdir()) == []


def test_missing_default_package_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstrings, "DEFAULT_PACKAGES", ("no_such_package_for_docstrings",))
    assert collect_pairs(["no_such_package_for_docstrings"], include_stdlib=False) == []


def test_submodule_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"top-level names, got 'os\.path'"):
        collect_pairs(["os.path"], include_stdlib=False)


def sample_pairs(modules: int = 400) -> list[DocstringPair]:
    """Returns two made-up pairs for each of some module names."""
    return [
        DocstringPair(f"document {number} {turn}", f"summary {number} {turn}", f"pkg.module{number}")
        for number in range(modules)
        for turn in range(2)
    ]


def test_split_shares_no_module_and_is_deterministic() -> None:
    pairs = sample_pairs()
    train, validation = split_by_module(pairs, validation_fraction=0.25)
    train_modules, validation_modules = {pair.module for pair in train}, {pair.module for pair in validation}
    assert train_modules.isdisjoint(validation_modules)
    assert sorted([*train, *validation], key=pairs.index) == pairs
    assert 70 <= len(validation_modules) <= 130
    backwards_train, backwards_validation = split_by_module(pairs[::-1], validation_fraction=0.25)
    assert (backwards_train[::-1], backwards_validation[::-1]) == (train, validation)
    # A module's side must not depend on what else is in the corpus, nor on the process.
    assert split_by_module(validation, validation_fraction=0.25) == ([], validation)
    assert [pair.module for pair in split_by_module(sample_pairs(60))[1]] == EXPECTED_VALIDATION_MODULES


def test_split_fraction_limits() -> None:
    pairs = sample_pairs(20)
    assert split_by_module(pairs, validation_fraction=0.0) == (pairs, [])
    assert split_by_module(pairs, validation_fraction=1.0) == ([], pairs)
    for fraction in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            split_by_module(pairs, validation_fraction=fraction)


@pytest.fixture
def collections_made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replaces the collection by made-up pairs, and returns the list of the calls."""
    calls: list[tuple[str, ...]] = []

    def fake_collect(packages: tuple[str, ...], *, verbose: bool = False) -> list[DocstringPair]:
        calls.append(tuple(packages))
        return [*sample_pairs(50), DocstringPair("uml\u00e4ut \u2028 line", 'quote " and \\ back', "pkg.odd")]

    monkeypatch.setattr(docstrings, "collect_pairs", fake_collect)
    return calls


def test_cache_is_used_the_second_time(tmp_path: Path, collections_made: list[tuple[str, ...]]) -> None:
    cache = tmp_path / "new" / "cache"
    first = load_corpus(cache, packages=["numpy"])
    assert collections_made == [("numpy",)]
    assert first == split_by_module(docstrings.collect_pairs(["numpy"]))
    collections_made.clear()
    assert load_corpus(cache, packages=["numpy"]) == first
    assert collections_made == []
    (file,) = cache.iterdir()
    assert re.fullmatch(r"docstrings-[0-9a-f]{12}\.jsonl", file.name)


def test_other_versions_or_packages_make_another_cache_file(
    tmp_path: Path, collections_made: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_corpus(tmp_path, packages=["numpy"])
    load_corpus(tmp_path, packages=["numpy", "torch"])
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    load_corpus(tmp_path, packages=["numpy"])
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr(docstrings.platform, "python_version", lambda: "3.0.0")
    load_corpus(tmp_path, packages=["numpy"])
    assert len(list(tmp_path.iterdir())) == 4
    monkeypatch.setattr(docstrings, "_FORMAT", -1)
    load_corpus(tmp_path, packages=["numpy"])
    assert len(list(tmp_path.iterdir())) == len(collections_made) == 5


def test_default_cache_folder(
    tmp_path: Path, collections_made: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    load_corpus(packages=["numpy"])
    assert len(list((tmp_path / "xdg" / "bertscore-tm").glob("docstrings-*.jsonl"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load_corpus(packages=["numpy"])
    assert len(list((tmp_path / "home" / ".cache" / "bertscore-tm").glob("docstrings-*.jsonl"))) == 1


def test_failed_write_leaves_no_file(
    tmp_path: Path, collections_made: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        assert source.parent == tmp_path
        raise OSError("no room")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        load_corpus(tmp_path, packages=["numpy"])
    assert list(tmp_path.iterdir()) == []


PAIR_LINE = json.dumps({"document": "d", "summary": "s", "module": "m"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"not json\n",
        b"[]\n",
        b'{"pairs": 1}\n',
        b'{"pairs": 1}\n{"document": "d"}\n',
        b'{"pairs": 1}\n[1, 2]\n',
        b'{"pairs": 1}\n{"document": "d", "summary": 3, "module": "m"}\n',
        f'{{"pairs": 2}}\n{PAIR_LINE}\n{PAIR_LINE[:20]}'.encode(),
        f"{{}}\n{PAIR_LINE}\n".encode(),
    ],
)
def test_corrupt_cache_is_reported(tmp_path: Path, collections_made: list[tuple[str, ...]], content: bytes) -> None:
    load_corpus(tmp_path, packages=["numpy"])
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    with pytest.raises(ValueError, match="delete it") as caught:
        load_corpus(tmp_path, packages=["numpy"])
    assert str(file) in str(caught.value)
    file.unlink()
    load_corpus(tmp_path, packages=["numpy"])
    assert len(collections_made) == 2


def test_standard_library_alone_gives_a_clean_corpus(docstring_pairs: list[DocstringPair]) -> None:
    pairs = docstring_pairs
    assert len(pairs) > 300
    modules = [pair.module for pair in pairs]
    assert modules == sorted(modules)
    top_levels = {module.split(".")[0] for module in modules}
    assert {"argparse", "asyncio", "unittest"} <= top_levels
    assert not any(part in ("test", "tests", "idle_test") for module in modules for part in module.split("."))
    plain = [
        (re.sub(r"[\W_]", "", pair.document.lower()), re.sub(r"[\W_]", "", pair.summary.lower())) for pair in pairs
    ]
    assert len({document for document, _ in plain}) == len({summary for _, summary in plain}) == len(pairs)
    openings = Counter(tuple(re.findall(r"[a-z0-9]+", pair.summary.lower())[:3]) for pair in pairs)
    assert max(openings.values()) <= 0.01 * len(pairs)
    for pair in pairs:
        assert 4 <= len(pair.summary.split()) <= 24
        assert 12 <= len(pair.document.split()) <= 120
        assert pair.summary.isascii()
        assert pair.summary[0].isupper()
        assert pair.summary[-1] in ".!?"
        assert pair.summary not in pair.document
        for text in (pair.document, pair.summary):
            assert text == " ".join(text.split())
            assert not re.search(r"``|>>>|https?://|:\w+:`|\.\. \w+::|(?<!\S)-----|\\", text), text
