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
import json
import os
import platform
import re
import sysconfig
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from examples.docstring_cleaning import document_and_summary

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
_MAX_OPENING_SHARE = 0.01

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
            texts = document_and_summary(docstring)
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
