"""Summarization corpus of the docstrings of installed packages.

The first sentence of a docstring summarizes the rest. This module reads the standard library and installed packages as
source files, without importing them, removes markup and keeps pairs of prose.

Example:
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
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from bertscore_tm.scoring.messages import progress_bar
from bertscore_tm.utilities.files import write_atomically
from examples.docstring_cleaning import document_and_summary

__all__ = [
    "DEFAULT_PACKAGES",
    "FEWER_PACKAGES",
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
"""Packages read by default: those that PyTorch, Transformers and Lightning install."""

FEWER_PACKAGES: tuple[str, ...] = tuple(name for name in DEFAULT_PACKAGES if name not in ("torch", "transformers"))
"""Without the two largest, which hold three quarters of the source code and half of the pairs."""

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
    """A document with its summary.

    Attributes:
        document: text after the summary, cleaned and truncated to its first words.
        summary: first sentence of the docstring.
        module: dotted name of the docstring's module.
    """

    document: str
    summary: str
    module: str


def collect_pairs(
    packages: Sequence[str] = DEFAULT_PACKAGES, *, include_stdlib: bool = True, verbose: bool = False
) -> list[DocstringPair]:
    """Collect documents and summaries from installed source files, without importing them.

    Documents and summaries are distinct (compared without case and punctuation). At most one percent of the summaries,
    but at least one, begin with the same three words.

    Args:
        packages: top-level names of the packages to read.
        include_stdlib: read the standard library too.
        verbose: show a progress bar on standard error.

    Returns:
        The pairs, ordered by module name and by position in the module.

    Raises:
        ModuleNotFoundError: a package is neither installed nor one of ``DEFAULT_PACKAGES``.
        ValueError: a package name is not a top-level name.
    """
    modules: dict[str, Path] = {}
    if include_stdlib:
        modules.update(_modules_below(Path(sysconfig.get_path("stdlib")), ""))
    for package in packages:
        modules.update(_package_modules(package))
    pairs: list[DocstringPair] = []
    seen_documents: set[str] = set()
    seen_summaries: set[str] = set()
    with progress_bar(len(modules), verbose, unit="file") as progress:
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
            progress(1)
    return _cap_openings(pairs)


def split_by_module(
    pairs: Sequence[DocstringPair], *, validation_fraction: float = 0.1
) -> tuple[list[DocstringPair], list[DocstringPair]]:
    """Split pairs into training and validation pairs from different modules.

    The side of a module depends only on a hash of its name, so it is the same on every machine and for every corpus.

    Args:
        pairs: the pairs to split.
        validation_fraction: expected fraction of the modules in the validation pairs.

    Returns:
        The training pairs and the validation pairs, each in the given order.

    Raises:
        ValueError: ``validation_fraction`` is not between 0 and 1.
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
    cache_dir: Path | None = None, *, packages: Sequence[str] = DEFAULT_PACKAGES, verbose: bool = False
) -> tuple[list[DocstringPair], list[DocstringPair]]:
    """Return training and validation pairs, from a cache file after the first call.

    The pairs are cached as JSON lines in a file whose name depends on the versions of Python and of the packages.

    Args:
        cache_dir: folder of the cache file. Default: ``bertscore-tm`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
        packages: top-level names of the packages to read in addition to the standard library.
        verbose: show a progress bar on standard error while the packages are read.

    Returns:
        The training pairs and the validation pairs.

    Raises:
        ModuleNotFoundError: a package is neither installed nor one of ``DEFAULT_PACKAGES``.
        ValueError: the cache file is corrupt, or a package name is not a top-level name.
    """
    if cache_dir is None:
        cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertscore-tm"
    path = cache_dir / f"docstrings-{_versions_hash(packages)}.jsonl"
    if path.exists():
        pairs = _read_cache(path)
    else:
        pairs = collect_pairs(packages, verbose=verbose)
        _write_cache(path, pairs)
    return split_by_module(pairs)


def _find_package(package: str) -> ModuleSpec | None:
    """Find a package without importing it; return None if a default package is not installed."""
    if not package.isidentifier():
        raise ValueError(f"packages must be top-level names, got {package!r}")
    spec = importlib.util.find_spec(package)
    if spec is None and package not in DEFAULT_PACKAGES:
        raise ModuleNotFoundError(f"package {package!r} is not installed", name=package)
    return spec


def _package_modules(package: str) -> dict[str, Path]:
    """Map the dotted module names of a package to their files."""
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
    """Map the dotted names of the modules in a folder to their files, without tests and vendored code."""
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
    """Yield the docstrings of a source file in order; skip a file that cannot be decoded or parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        inner = [child for name in ("body", "handlers", "orelse", "finalbody") for child in _statements(node, name)]
        stack.extend(reversed(inner))


def _statements(node: ast.AST, field: str) -> list[ast.AST]:
    """Return the statements in a field of a node; an empty list if the node has no such list."""
    value = getattr(node, field, None)
    return value if isinstance(value, list) else []


def _key(text: str) -> str:
    """Return a text without case, punctuation and spaces, for comparison."""
    return _NOT_ALPHANUMERIC.sub("", text.lower())


def _cap_openings(pairs: Sequence[DocstringPair]) -> list[DocstringPair]:
    """Drop pseudo-random pairs until no three-word opening of a summary exceeds its share."""
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
    """Map a text to a number in [0, 1) that is the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Map top-level names to the distributions that provide them; it reads the metadata of all that are installed."""
    return importlib.metadata.packages_distributions()


def _versions_hash(packages: Sequence[str]) -> str:
    """Return a short hash of the cache format and of the versions of Python and of the packages."""
    distributions = _distributions()
    versions: dict[str, list[str] | None] = {}
    for package in packages:
        names = sorted(set(distributions.get(package, []))) if _find_package(package) is not None else None
        versions[package] = names and [f"{name} {importlib.metadata.version(name)}" for name in names]
    text = json.dumps([_FORMAT, platform.python_version(), versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _write_cache(path: Path, pairs: Sequence[DocstringPair]) -> None:
    """Write the pairs, after a line with their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"pairs": len(pairs)}), *(json.dumps(asdict(pair)) for pair in pairs)]
    with write_atomically(path) as file:
        file.writelines(line + "\n" for line in lines)


def _read_cache(path: Path) -> list[DocstringPair]:
    """Read the pairs and check that the file is complete."""
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        pairs = [DocstringPair(**json.loads(line)) for line in lines]
        if len(pairs) != json.loads(header)["pairs"]:
            raise ValueError("the number of pairs differs from the number in the first line")
        if not all(isinstance(text, str) for pair in pairs for text in (pair.document, pair.summary, pair.module)):
            raise ValueError("a pair contains a value that is not a string")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the docstring cache {path} is corrupt ({error}); delete it to rebuild it") from error
    return pairs
