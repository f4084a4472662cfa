"""A module's tests stand in the file of its name, names of tests are short, and shared helpers have docstrings."""

import ast
from pathlib import Path

import pytest

from tests.support.markdown_blocks import ROOT

TESTS = ROOT / "tests"
# Folder of the code, and folder of its tests.
PACKAGES = {
    ROOT / "bertscore_tm": TESTS,
    ROOT / "losses": TESTS / "losses",
    ROOT / "callbacks": TESTS / "callbacks",
}
# Tests of several modules at once, of the checkout, and of the programs and pages.
OTHER_FOLDERS = ("workflows", "repository", "support", "examples")
LONGEST_NAME = 60
# Modules without a file of their own, and where they are tested.
TESTED_ELSEWHERE = {
    "bertscore_tm/cli/scoring.py": "cli/test_score.py",
    "bertscore_tm/pages/render.py": "workflows/browser/test_table.py",
    "bertscore_tm/report/aligned_rows.py": "report/test_report.py",
    "bertscore_tm/report/text_facts.py": "report/test_report.py",
    "bertscore_tm/scoring/warnings.py": "workflows/test_unknown_tokens.py",
    "bertscore_tm/utilities/compilation.py": "workflows/test_compiled_steps.py",
    "bertscore_tm/utilities/version.py": "repository/test_repository.py",
}


def find_modules() -> dict[str, Path]:
    """Return the file in which each module should be tested."""
    files = {}
    for package, folder in PACKAGES.items():
        for path in sorted(package.rglob("*.py")):
            if path.name.startswith("__"):
                continue
            place = folder / path.relative_to(package).parent
            files[path.relative_to(ROOT).as_posix()] = place / f"test_{path.name}"
    return files


def find_tests() -> list[Path]:
    return sorted(TESTS.rglob("test_*.py"))


def test_every_module_has_a_file_of_its_name():
    missing = [module for module, path in find_modules().items() if not path.is_file()]
    assert missing == sorted(TESTED_ELSEWHERE)


@pytest.mark.parametrize("module", TESTED_ELSEWHERE)
def test_the_tests_of_a_module_without_a_file_exist(module):
    assert (TESTS / TESTED_ELSEWHERE[module]).is_file()


def test_every_file_has_the_name_of_a_module():
    expected = set(find_modules().values())
    for path in find_tests():
        folder = path.relative_to(TESTS).parts[0]
        assert path in expected or folder in OTHER_FOLDERS, f"{path.relative_to(ROOT)} has no module of its name"


def test_names_of_tests_are_short():
    names = []
    for path in find_tests():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.append(node.name)

    assert [name for name in names if len(name) > LONGEST_NAME] == []


def test_shared_helpers_have_docstrings():
    without = []
    for path in sorted((TESTS / "support").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            is_helper = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("test_")
            if is_helper and not ast.get_docstring(node):
                without.append(f"{path.name}: {node.name}")

    assert without == []
