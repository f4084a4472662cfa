"""A summarization corpus that every machine with Python already holds: docstrings.

The opening sentence of a docstring summarises the text below it, so docstrings make natural
(document, summary) pairs. This module reads the standard library and the installed packages as source files,
without importing any of them, cleans the markup away and keeps the pairs that read like prose.

Typical use::

    train, validation = load_corpus()
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import re
import sysconfig
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

__all__ = [
    "DEFAULT_PACKAGES",
    "DocstringPair",
    "collect_pairs",
    "load_corpus",
    "split_by_module",
]

DEFAULT_PACKAGES: tuple[str, ...] = (
    "huggingface_hub",
    "jinja2",
    "lightning",
    "networkx",
    "numpy",
    "sympy",
    "torch",
    "torchmetrics",
    "transformers",
)
"""Packages read by default: the ones that PyTorch, Transformers and Lightning bring along."""

_FORMAT = 1
_MIN_SUMMARY_WORDS, _MAX_SUMMARY_WORDS = 4, 24
_MIN_DOCUMENT_WORDS, _MAX_DOCUMENT_WORDS = 12, 120
_MAX_OPENING_SHARE = 0.01
_MIN_LETTER_SHARE = 0.85

_SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "_bundled",
        "_internal",
        "_vendor",
        "_vendored",
        "dist-packages",
        "extern",
        "externals",
        "idle_test",
        "site-packages",
        "test",
        "tests",
        "third_party",
        "vendor",
        "vendored",
    }
)
_TEST_FILE = re.compile(r"test_.*|.*_tests?|conftest")

# Sections whose bodies are code, links or names rather than prose.
_DROPPED_SECTIONS = frozenset(
    {
        "code example",
        "code examples",
        "doctest",
        "example",
        "example usage",
        "examples",
        "reference",
        "references",
        "see also",
        "usage",
        "usage example",
        "usage examples",
    }
)
_KEPT_SECTIONS = frozenset(
    {
        "args",
        "arguments",
        "attributes",
        "keyword args",
        "keyword arguments",
        "note",
        "notes",
        "other parameters",
        "parameters",
        "params",
        "raises",
        "return",
        "returns",
        "shape",
        "warning",
        "warnings",
        "warns",
        "yields",
    }
)
# Directives whose bodies are prose; the bodies of all the others go with them.
_PROSE_DIRECTIVES = frozenset({"attention", "caution", "hint", "important", "note", "rubric", "tip", "warning"})

_DIRECTIVE = re.compile(r"\.\.\s+(?P<name>[\w:-]+)::\s*(?P<text>.*)|\.\.(\s.*)?")
_UNDERLINE = re.compile(r"([-=~^\"*#+_`'])\1{2,}")
_TABLE_LINE = re.compile(r"[|+].*[|+]|[-=~]{2,}(\s+[-=~]{2,})+")
_FENCE = re.compile(r"```|~~~")
_TAG_LINE = re.compile(r"\[\[.*\]\].*|</?[A-Za-z]\w*( [^>]*)?>|>?\s*\[![A-Z]+\]|(#|//)\s.*")
_GOOGLE_ITEM = re.compile(r"(?:[-*]\s+)?(?P<name>[`*\w.]+(?:,\s*[`*\w.]+)*)\s*\(.*?\)\s*(?::|--)(?=\s|$)")
_UNTYPED_ITEM = re.compile(r"[`'\"*\w]+\s?:(?=\s|$)")
_NUMPY_ITEM = re.compile(r"(?P<name>[`*\w]+(?:\s*,\s*[`*\w]+)*)\s+: .*")
_SPHINX_FIELD = re.compile(r":(?P<kind>\w+)(?:\s+(?P<name>[^:`]+))?:(?=\s|$)")
_BULLET = re.compile(r"([-*+]|\(?[0-9a-z#][.)])\s+(?=\S)")

_URL_MARK = "\x00"  # stands for a removed address until the sentence around it is dropped too
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_MARKDOWN_LINK = re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)")
_CODE = re.compile(r"\[?(?P<role>:[\w:+-]+:)?(?P<ticks>`{1,2})(?P<text>[^`]+)(?P=ticks)_{0,2}(?P<close>\])?")
_TITLED_TARGET = re.compile(r"(?P<title>[^<]*\S)\s*<[^>]+>")
_DOTTED_NAME = re.compile(r"[~!](?:\w+\.)*(?P<last>\w+(?:\(\))?)")
_ROLE_NAME = re.compile(r"(?:\w+\.)+(?P<last>\w+(?:\(\))?)")
_URL = re.compile(r"<?\b(?:https?|ftp)://[^\s>]*[^\s>.,;:)]>?|\bwww\.[^\s>]*[^\s>.,;:)]")
_FOOTNOTE = re.compile(r"\s*\[(?:\d+|#\w*|[A-Z]\w*\d{2,4}\w?)\]_")
_TAG = re.compile(r"</?(?:a|b|br|code|div|em|i|img|li|p|pre|span|strong|sub|sup|tip|ul)\b[^>]*>", re.IGNORECASE)
_STRONG = re.compile(r"\*\*([^*\s](?:[^*]*[^*\s])?)\*\*")
_EMPHASIS = re.compile(r"(?<![\w*\\])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])")
_ESCAPE = re.compile(r"\\(?=[*_`|\\ ])")
# What makes a block unfit to read: code, formulas, remarks to developers, the rest of a sentence after a formula.
_UNFIT_BLOCK = re.compile(r"[\\{}`$]|>>>|::|\b(?:TODO|FIXME|XXX)\b|^where\b|^[^A-Za-z]*$")
_RULE = re.compile(r"(?<!\S)[-=~*#_]{3,}(?!\S)")
_BRACKETED_URL = re.compile(rf"\s*\([\s,;:{_URL_MARK}]*{_URL_MARK}[\s,;]*\)")
_SPACE_BEFORE_STOP = re.compile(r"\s+([,.;:])(?=\s|$)")

_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bcf)(?<!\bal)[.!?](?=\s+[A-Z]|\s*$)")
_SENTENCE_GAP = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_LEFTOVER_MARKUP = re.compile(r"[\\`{}|<>=$@\x00]|::")
_UNWANTED_SUMMARY = re.compile(
    r"(?:deprecated|todo|fixme|see |please |docstring|helper (?:function|class|method)\.|internal |note:|warning:"
    r"|this (?:function|method|class|module) is (?:deprecated|experimental)|copyright|base class for)",
    re.IGNORECASE,
)
_NOT_ALPHANUMERIC = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class DocstringPair:
    """One (document, summary) pair.

    Attributes:
        document: The text below the summary, cleaned and cut to its first words.
        summary: The opening sentence of the docstring.
        module: Dotted name of the module that the docstring comes from.
    """

    document: str
    summary: str
    module: str


def collect_pairs(packages: Sequence[str] = DEFAULT_PACKAGES, *, include_stdlib: bool = True) -> list[DocstringPair]:
    """Collects (document, summary) pairs from installed source files, importing none of them.

    No document and no summary occurs twice (compared without case and punctuation), and no three-word opening makes
    up more than one percent of the summaries (one pair of each opening is kept in any case).

    Args:
        packages: Top-level names of the packages to read.
        include_stdlib: Whether to read the standard library too.

    Returns:
        The pairs, ordered by module name and by their place in the module.

    Raises:
        ModuleNotFoundError: If a package is not installed and not one of ``DEFAULT_PACKAGES``.
        ValueError: If a package name is not a top-level name.
    """
    modules: dict[str, Path] = {}
    if include_stdlib:
        modules.update(_modules_below(Path(sysconfig.get_path("stdlib")), ""))
    for package in packages:
        modules.update(_package_modules(package))
    pairs: list[DocstringPair] = []
    seen_documents: set[str] = set()
    seen_summaries: set[str] = set()
    for module in sorted(modules):
        for docstring in _docstrings(modules[module]):
            texts = _document_and_summary(docstring)
            if texts is None:
                continue
            document, summary = texts
            document_key, summary_key = _key(document), _key(summary)
            if summary_key in document_key or document_key in seen_documents or summary_key in seen_summaries:
                continue
            seen_documents.add(document_key)
            seen_summaries.add(summary_key)
            pairs.append(DocstringPair(document, summary, module))
    return _cap_openings(pairs)


def split_by_module(
    pairs: Sequence[DocstringPair], *, validation_fraction: float = 0.1
) -> tuple[list[DocstringPair], list[DocstringPair]]:
    """Splits pairs into train and validation so that the two share no module.

    A module's side depends on a hash of its name alone, so it is the same on every machine and for every corpus.

    Args:
        pairs: The pairs to split.
        validation_fraction: Expected fraction of the modules that goes to validation.

    Returns:
        The train pairs and the validation pairs, each in the order given.

    Raises:
        ValueError: If ``validation_fraction`` is not between 0 and 1.
    """
    if not 0.0 <= validation_fraction <= 1.0:
        raise ValueError(f"validation_fraction must be between 0 and 1, got {validation_fraction}")
    train: list[DocstringPair] = []
    validation: list[DocstringPair] = []
    for pair in pairs:
        side = validation if _unit_hash(pair.module) < validation_fraction else train
        side.append(pair)
    return train, validation


def load_corpus(
    cache_dir: Path | None = None, *, packages: Sequence[str] = DEFAULT_PACKAGES
) -> tuple[list[DocstringPair], list[DocstringPair]]:
    """Returns the train and validation pairs, collecting them on the first call only.

    The pairs are cached as JSON lines in a file whose name depends on the versions of Python and of the packages.

    Args:
        cache_dir: Folder of the cache file; by default ``bertscore-tm`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
        packages: Top-level names of the packages to read besides the standard library.

    Returns:
        The train pairs and the validation pairs.

    Raises:
        ModuleNotFoundError: If a package is not installed and not one of ``DEFAULT_PACKAGES``.
        ValueError: If the cache file is corrupt, or a package name is not a top-level name.
    """
    if cache_dir is None:
        cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertscore-tm"
    path = cache_dir / f"docstrings-{_versions_hash(packages)}.jsonl"
    if path.exists():
        pairs = _read_cache(path)
    else:
        pairs = collect_pairs(packages)
        _write_cache(path, pairs)
    return split_by_module(pairs)


def _find_package(package: str) -> ModuleSpec | None:
    """Finds a package without importing it; None where one of the default packages is not installed."""
    if not package.isidentifier():
        raise ValueError(f"packages are given by their top-level names, got {package!r}")
    spec = importlib.util.find_spec(package)
    if spec is None and package not in DEFAULT_PACKAGES:
        raise ModuleNotFoundError(f"package {package!r} is not installed", name=package)
    return spec


def _package_modules(package: str) -> dict[str, Path]:
    """Maps the dotted module names of a package to their files."""
    spec = _find_package(package)
    if spec is None:
        return {}
    modules: dict[str, Path] = {}
    for folder in spec.submodule_search_locations or ():
        modules.update(_modules_below(Path(folder), package))
    if spec.submodule_search_locations is None and spec.origin is not None and spec.origin.endswith(".py"):
        modules[package] = Path(spec.origin)
    return modules


def _modules_below(root: Path, prefix: str) -> dict[str, Path]:
    """Maps the dotted names of the modules below a folder to their files, leaving out tests and vendored code."""
    modules = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name.isidentifier() and name not in _SKIPPED_FOLDERS]
        folder_parts = Path(folder).relative_to(root).parts
        for file in files:
            stem = file.removesuffix(".py")
            if stem == file or not stem.isidentifier() or _TEST_FILE.fullmatch(stem):
                continue
            parts = folder_parts if stem == "__init__" else (*folder_parts, stem)
            modules[".".join((prefix, *parts) if prefix else parts)] = Path(folder, file)
    return modules


def _docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a source file in order; none where the file cannot be decoded or parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        inner = [child for name in ("body", "handlers", "orelse", "finalbody") for child in _statements(node, name)]
        waiting.extend(reversed(inner))


def _statements(node: ast.AST, field: str) -> list[ast.AST]:
    """Returns the statements in a field of a node, or none where the node has no such list."""
    value = getattr(node, field, None)
    return value if isinstance(value, list) else []


def _document_and_summary(docstring: str) -> tuple[str, str] | None:
    """Cleans a docstring and splits it into document and summary; None where it does not make a good pair."""
    printable = "".join(char for char in docstring if char.isprintable() or char in "\n\t")
    blocks = _blocks(inspect.cleandoc(printable).splitlines())
    opening = next(blocks, "")
    end = _SENTENCE_END.search(opening)
    if end is None:
        return None
    summary = opening[: end.end()]
    if not _is_good_summary(summary):
        return None
    document = _join([_without_addresses(block) for block in (opening[end.end() :].strip(), *blocks)])
    words = document.split()
    if len(words) < _MIN_DOCUMENT_WORDS or _letter_share(document) < _MIN_LETTER_SHARE:
        return None
    return " ".join(words[:_MAX_DOCUMENT_WORDS]), summary


def _blocks(lines: Sequence[str]) -> Iterator[str]:
    """Yields the cleaned paragraphs, items and headings of a docstring; an empty one where only markup was left."""
    block: list[str] = []
    for line in _prose_lines(lines):
        text, starts_block = _item_text(line)
        if (starts_block or not text) and block:
            yield _clean_block(block)
            block = []
        if text:
            block.append(text)
            if _heading(text) is not None:
                yield _clean_block(block)
                block = []
    if block:
        yield _clean_block(block)


def _prose_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yields the stripped prose lines, leaving out code, tables, underlines and directives with their bodies."""
    dropped_indent: int | None = None  # lines indented deeper than this are the body of something dropped
    in_doctest = in_fence = in_dropped_section = False
    for number, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if _FENCE.match(text):
            in_fence = not in_fence and not _FENCE.search(text, 3)
            continue
        if in_fence:
            continue
        if not text:
            in_doctest = False
            yield ""
            continue
        if dropped_indent is not None:
            if indent > dropped_indent:
                continue
            dropped_indent = None
        in_doctest = in_doctest or text.startswith(">>>")
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        underlined = _UNDERLINE.fullmatch(following) is not None
        heading = _heading(text, underlined=underlined)
        if underlined:
            in_dropped_section = heading in _DROPPED_SECTIONS
        if in_doctest or in_dropped_section:
            continue
        if heading in _DROPPED_SECTIONS:
            dropped_indent = indent
            continue
        if heading is not None:
            yield ""
            yield text.strip("*#: ") + ":"
            continue
        if _UNDERLINE.fullmatch(text) or _TABLE_LINE.fullmatch(text) or _TAG_LINE.fullmatch(text):
            continue
        directive = _DIRECTIVE.fullmatch(text)
        if directive is not None:
            if directive["name"] not in _PROSE_DIRECTIVES:
                dropped_indent = indent
            else:
                yield ""
                yield directive["text"]
            continue
        if text.endswith("::"):
            dropped_indent = indent
            text = text[:-2].rstrip() + "."
            if text == ".":
                continue
        yield text


def _heading(text: str, *, underlined: bool = False) -> str | None:
    """Returns the lower-case name of a section heading, or None where the line is no heading."""
    name = text.strip("*# ").rstrip(":").rstrip("*").lower()
    if underlined or (name in _DROPPED_SECTIONS | _KEPT_SECTIONS and text.endswith((":", ":**"))):
        return name
    return None


def _item_text(line: str) -> tuple[str, bool]:
    """Rewrites a list item or a described argument as plain text, and says whether the line starts a block."""
    match = _GOOGLE_ITEM.match(line)
    if match is not None:
        return f"{match['name']}:{line[match.end() :]}", True
    match = _NUMPY_ITEM.fullmatch(line)
    if match is not None:
        return f"{match['name']}:", True
    match = _SPHINX_FIELD.match(line)
    if match is not None:
        if match["kind"] in ("rtype", "type"):
            return "", True
        label = (match["name"] or match["kind"].capitalize()).split()[-1]
        return f"{label}:{line[match.end() :]}", True
    match = _BULLET.match(line)
    if match is not None:
        return line[match.end() :], True
    return line, _UNTYPED_ITEM.match(line) is not None or _heading(line) is not None


def _clean_block(lines: Iterable[str]) -> str:
    """Strips the inline markup from the lines of one block and joins them; empty where unfit to read."""
    text = _RULE.sub("", _IMAGE.sub("", " ".join(lines)))
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _CODE.sub(_code_text, text)
    text = _URL.sub(_URL_MARK, text)
    text = _FOOTNOTE.sub("", text)
    text = _TAG.sub("", text)
    text = _EMPHASIS.sub(r"\1", _STRONG.sub(r"\1", text))
    text = _ESCAPE.sub("", text)
    text = _BRACKETED_URL.sub("", text)
    text = _SPACE_BEFORE_STOP.sub(r"\1", " ".join(text.split()))
    return "" if _UNFIT_BLOCK.search(text) else text


def _code_text(match: re.Match[str]) -> str:
    """Returns the readable text of code in backticks, of a role or of a titled link."""
    text = " ".join(match["text"].split())
    titled = _TITLED_TARGET.fullmatch(text)
    if titled is not None:
        text = titled["title"]
    dotted = (_ROLE_NAME if match["role"] else _DOTTED_NAME).fullmatch(text)
    if dotted is None and match["role"]:
        dotted = _DOTTED_NAME.fullmatch(text)
    if dotted is not None:
        text = dotted["last"]
    opened, closed = match[0].startswith("["), match["close"] is not None
    return ("[" if opened and not closed else "") + text + ("]" if closed and not opened else "")


def _without_addresses(block: str) -> str:
    """Drops the sentences that held an address, for they mean little without it."""
    return " ".join(sentence for sentence in _SENTENCE_GAP.split(block) if _URL_MARK not in sentence)


def _join(blocks: Sequence[str]) -> str:
    """Joins blocks to one text, ending each as a sentence and leaving out headings with nothing below them."""
    kept: list[str] = []
    for block in reversed([block for block in blocks if block]):
        below_is_heading = not kept or _heading(kept[-1]) is not None
        if below_is_heading and (_heading(block) is not None or (not kept and block.endswith(":"))):
            continue
        kept.append(block if block.endswith((".", ":", "!", "?", ",", ";")) else block + ".")
    return " ".join(reversed(kept))


def _is_good_summary(summary: str) -> bool:
    """Says whether a sentence has the length and the look of a summary."""
    return (
        _MIN_SUMMARY_WORDS <= len(summary.split()) <= _MAX_SUMMARY_WORDS
        and summary.isascii()
        and summary[0].isupper()
        and _letter_share(summary) >= _MIN_LETTER_SHARE
        and not _LEFTOVER_MARKUP.search(summary)
        and not _UNWANTED_SUMMARY.match(summary)
    )


def _letter_share(text: str) -> float:
    """Returns the share of ASCII letters and spaces in a text that is not empty."""
    return sum(char == " " or (char.isascii() and char.isalpha()) for char in text) / len(text)


def _key(text: str) -> str:
    """Returns a text without case, punctuation and spacing, for comparison."""
    return _NOT_ALPHANUMERIC.sub("", text.lower())


def _cap_openings(pairs: Sequence[DocstringPair]) -> list[DocstringPair]:
    """Thins out pairs until no three-word opening of a summary exceeds its share; which ones stay is pseudo-random."""
    kept = list(pairs)
    while True:
        limit = max(1, int(len(kept) * _MAX_OPENING_SHARE))
        counts: Counter[str] = Counter()
        chosen: set[DocstringPair] = set()
        for pair in sorted(kept, key=lambda pair: _unit_hash(pair.summary)):
            opening = " ".join(_NOT_ALPHANUMERIC.sub(" ", pair.summary.lower()).split()[:3])
            counts[opening] += 1
            if counts[opening] <= limit:
                chosen.add(pair)
        if len(chosen) == len(kept):
            return kept
        kept = [pair for pair in kept if pair in chosen]


def _unit_hash(text: str) -> float:
    """Maps a text to a number in [0, 1) that is the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _versions_hash(packages: Sequence[str]) -> str:
    """Returns a short hash of the cache format and of the versions of Python and of the packages."""
    distributions = importlib.metadata.packages_distributions()
    versions: dict[str, list[str] | None] = {}
    for package in packages:
        names = sorted(set(distributions.get(package, []))) if _find_package(package) is not None else None
        versions[package] = names and [f"{name} {importlib.metadata.version(name)}" for name in names]
    text = json.dumps([_FORMAT, platform.python_version(), versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _write_cache(path: Path, pairs: Sequence[DocstringPair]) -> None:
    """Writes the pairs, below a line with their number, to a temporary file and moves it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"pairs": len(pairs)}), *(json.dumps(asdict(pair)) for pair in pairs)]
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=path.stem, suffix=".tmp", delete=False
    ) as file:
        temporary = Path(file.name)
        file.writelines(line + "\n" for line in lines)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink()
        raise


def _read_cache(path: Path) -> list[DocstringPair]:
    """Reads the pairs back, checking that they are all there."""
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        pairs = [DocstringPair(**json.loads(line)) for line in lines]
        if len(pairs) != json.loads(header)["pairs"]:
            raise ValueError("the number of pairs differs from the number in the first line")
        if not all(isinstance(text, str) for pair in pairs for text in (pair.document, pair.summary, pair.module)):
            raise ValueError("a pair holds something other than text")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the docstring cache {path} is corrupt ({error}); delete it to have it made anew") from error
    return pairs
