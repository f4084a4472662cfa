"""The docstrings that programs train on, and the generator that they train."""

import re
import sys
import textwrap

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from examples import docstrings
from examples.docstrings import Collate, DocstringPair, collect_pairs, load_corpus, load_generator

LONG = "The remaining text has more than enough plain words to count as one whole document"
GOOD = "Opens the gate for visitors."


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes a file of an importable package."""
    folder = tmp_path / "docstring_sample_package"
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(path, source):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(textwrap.dedent(source).encode("utf-8", "surrogateescape"))

    write("__init__.py", "")
    return write


def pairs_of(package, docstring):
    package("module.py", f"def function():\n    r'''{textwrap.indent(docstring, '    ').strip()}\n    '''\n")
    return [(pair.document, pair.summary) for pair in collect_pairs(["docstring_sample_package"], include_stdlib=False)]


def test_package_on_disk_gives_exactly_the_expected_pairs(package):
    package(
        "shelf.py",
        r'''
        raise RuntimeError("the file must be read, not imported")

        class Shelf:
            r"""Holds a row of :class:`~library.Book` objects.

            The books stand in the order of their ``title``, see `the manual <https://example.org/manual>`_ and
            :func:`sorted_books` for the **exact** rules that decide what *order* means here.

            .. versionadded:: 1.2
               It was not there before this version.

            Args:
                width (int, optional): Room on the shelf
            """

            async def borrow(self, reader):
                """
                Lend a book to a reader.

                The reader may take it home for at most four weeks, and should return it in good order.

                Parameters
                ----------
                reader : Reader
                    The person who takes the book home.
                """

            if True:
                def count(self):
                    """Too short."""

                def copy(self):
                    """Lend a book to a reader!

                    The summary differs from an earlier one in its punctuation only, hence this one goes.
                    """

                def repeat(self):
                    """Counts the animals twice.

                    This function counts the animals twice. It does so because somebody always moves meanwhile.
                    """
        ''',
    )
    ignored = f'"""{GOOD}\n\n{LONG}.\n"""\n'
    for path in ("tests/helpers.py", "_vendor/six.py", "test_shelf.py", "conftest.py", "not-a-module.py", "notes.txt"):
        package(path, ignored)
    package("broken.py", ignored + "def (:\n")
    package("latin.py", ignored.replace("gate", "gate \udcff"))
    name = "docstring_sample_package"
    assert collect_pairs([name], include_stdlib=False) == [
        DocstringPair(
            "The books stand in the order of their title, see the manual and sorted_books for the exact rules that "
            "decide what order means here.",
            "Holds a row of Book objects.",
            f"{name}.shelf",
        ),
        DocstringPair(
            "The reader may take it home for at most four weeks, and should return it in good order.",
            "Lend a book to a reader.",
            f"{name}.shelf",
        ),
    ]
    assert not any(module.startswith(name) for module in sys.modules)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (f"{LONG}.\n\n- first\n- second\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}.\n\n>>> run()\nthe output\n\nThe end.", f"{LONG}. The end."),
        (f"{LONG}.\n\nReturns:\n    The box.\n\nThe end.", f"{LONG}."),
    ],
)
def test_prose_before_the_first_section_is_the_document(package, rest, expected):
    assert pairs_of(package, f"{GOOD}\n\n{rest}") == [(expected, GOOD)]


@pytest.mark.parametrize(
    ("summary", "is_kept"),
    [
        ("Opens three words.", False),
        ("Opens four words only.", True),
        (" ".join(["Opens", *["word"] * 22, "end."]), True),
        (" ".join(["Opens", *["word"] * 23, "end."]), False),
        ("Opens the gate, e.g. for visitors.", True),
        ("opens the gate for visitors.", False),
        ("Opens the gate where x = y holds.", False),
    ],
)
def test_summaries_are_selected(package, summary, is_kept):
    assert pairs_of(package, f"{summary}\n\n{LONG}.") == ([(f"{LONG}.", summary)] if is_kept else [])


def test_unknown_package_is_named():
    with pytest.raises(ModuleNotFoundError, match="no_such_package_for_docstrings"):
        collect_pairs(["json", "no_such_package_for_docstrings"], include_stdlib=False)


def test_standard_library_alone_gives_a_clean_corpus(docstring_pairs):
    assert len(docstring_pairs) > 1000
    modules = [pair.module for pair in docstring_pairs]
    assert modules == sorted(modules)
    assert {"argparse", "asyncio", "unittest"} <= {module.split(".")[0] for module in modules}
    assert not any(part in ("test", "tests", "idle_test") for module in modules for part in module.split("."))
    for pair in docstring_pairs:
        assert pair.summary.isascii()
        assert pair.summary not in pair.document
        for text in (pair.document, pair.summary):
            assert text == " ".join(text.split())
            assert not re.search(r"``|>>>|https?://|:\w+:`|\.\. \w+::|(?<!\S)-----|\\", text), text


def test_sides_share_no_module_and_do_not_depend_on_other_pairs(docstring_pairs, corpus, monkeypatch):
    sides = [{pair.module for _, pair in side} for side in corpus]
    assert sum(map(len, sides)) == len(set.union(*sides)) == len({pair.module for pair in docstring_pairs})
    assert min(map(len, corpus)) > 100
    assert all([index for index, _ in side] == list(range(len(side))) for side in corpus)
    assert sorted(pair.summary for side in corpus for _, pair in side) == sorted(p.summary for p in docstring_pairs)
    monkeypatch.setattr(docstrings, "collect_pairs", lambda packages: [pair for _, pair in corpus.test])
    again = load_corpus()
    assert (again.train, again.validation, len(again.test)) == ([], [], len(corpus.test))


@pytest.mark.usefixtures("one_thread")
def test_generator_tokenizes_like_minilm_and_starts_from_its_weights(corpus, minilm):
    rows = corpus.train[:100]
    model, tokenizer = load_generator(rows, encoder_layers=1, decoder_layers=1)
    full = AutoTokenizer.from_pretrained(minilm)
    assert len(tokenizer) < 3000 < len(full)
    for _, pair in rows:
        assert tokenizer.tokenize(pair.summary)[:22] == full.tokenize(pair.summary)[:22]
    kept = full.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    original = AutoModel.from_pretrained(minilm).get_input_embeddings().weight
    for half in (model.encoder, model.decoder):
        torch.testing.assert_close(half.get_input_embeddings().weight, original[kept])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert all(name.startswith("encoder.") or "word_embeddings" in name for name in frozen)
    assert any("crossattention" in name for name, _ in model.named_parameters() if name not in frozen)

    batch = Collate(tokenizer)(rows[3:5])
    assert batch["index"].tolist() == [3, 4]
    expected = tokenizer([pair.summary for _, pair in rows[3:5]], max_length=24, truncation=True)["input_ids"]
    assert [row[row != -100].tolist() for row in batch["labels"]] == [ids[1:] for ids in expected]
    assert {ids[0] for ids in expected} == {model.config.decoder_start_token_id}
    shape = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).logits.shape
    assert shape == (*batch["labels"].shape, len(tokenizer))
