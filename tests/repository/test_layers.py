"""The folders of the package: which may import which, and what each keeps to itself.

Imports are read from the source, those inside of functions and for type checkers included.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.markdown_blocks import ROOT

LEAVES = {"catalog", "statistics", "utilities"}
BOTTOM = LEAVES | {"device", "matching", "pages"}
LOWER = BOTTOM | {"encoder", "scoring"}
# What each folder may import.
ALLOWED = {
    **{leaf: {"utilities"} - {leaf} for leaf in LEAVES},
    "device": {"utilities"},
    "matching": {"device", "utilities"},
    "encoder": BOTTOM,
    "scoring": BOTTOM | {"encoder"},
    "pages": {"utilities"},
    "alignment": LOWER,
    "functional": LOWER | {"alignment"},
    "metric": LOWER | {"alignment"},
    "report": LOWER | {"functional", "alignment"},
    "losses": LOWER | {"functional", "metric"},
    "compat": LOWER | {"functional", "metric", "alignment"},
    "callbacks": LOWER | {"functional", "metric", "alignment", "report", "losses"},
    "cli": LOWER | {"functional", "alignment", "report"},
}
# The package's `__init__` resolves the public names from their folders; no folder imports them from it.
FACE = "bertscore_tm"
# Folders that import a library; the callbacks score other text metrics of torchmetrics, too.
LIBRARIES = {"torchmetrics": {"metric", "callbacks"}, "lightning": {"callbacks"}}


class Import(NamedTuple):
    """An imported module or name, and the file and line that import it."""

    folder: str
    target: str
    place: str


def folder_of(module: str) -> str:
    """Return the folder of a module of the package, by its import name."""
    parts = module.split(".")
    if parts[0] == FACE and len(parts) > 1 and parts[1] in ALLOWED:
        return parts[1]
    return parts[0]


@cache
def sources() -> dict[str, Path]:
    """Return the files of the package by import name."""
    paths = {}
    for folder in (FACE, "callbacks", "losses"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
            if folder != FACE:
                parts.insert(0, FACE)
            paths[".".join(parts)] = path
    return paths


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports() -> list[Import]:
    statements = []
    for module, path in sources().items():
        for node in ast.walk(tree(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):  # ruff refuses relative ones
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            statements += [Import(folder_of(module), name, f"{path.relative_to(ROOT)}:{node.lineno}") for name in names]
    return statements


def crossings() -> list[Import]:
    """Return the imports of one folder by another."""
    internal = [each for each in imports() if each.target.split(".")[0] == FACE]
    return [each for each in internal if each.folder not in (FACE, folder_of(each.target))]


def test_every_module_belongs_to_a_folder():
    assert {folder_of(module) for module in sources()} == {FACE, *ALLOWED}


def test_imports_point_down():
    assert not [each for each in crossings() if folder_of(each.target) not in ALLOWED[each.folder]]


def test_no_private_name_crosses_folders():
    assert not [each for each in crossings() if re.search(r"\._(?!_)", each.target)]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_stays_in_its_folders(library):
    places = {each.folder: each.place for each in imports() if each.target.split(".")[0] == library}
    assert places.keys() == LIBRARIES[library], places


def test_every_folder_states_its_contract():
    folders = [path for module, path in sources().items() if path.name == "__init__.py" or module.count(".") == 1]
    assert not [str(path) for path in folders if not ast.get_docstring(tree(path))]
