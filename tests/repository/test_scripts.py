"""The scripts of the pages, read as text."""

import re
from pathlib import Path

import pytest

from bertscore_tm.pages import render

FOLDER = Path(render.__file__).parent
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.js"))
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(.+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:const|let|function) (\w+)", re.MULTILINE)
COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


def read(name):
    """Return a script without the lines that are comments."""
    return COMMENT.sub("", (FOLDER / name).read_text(encoding="utf-8"))


def imported(text):
    """Yield each imported name and the script that it is from."""
    for names, module in IMPORT.findall(text):
        for name in names.split(","):
            if name.strip():
                yield name.strip(), module


@pytest.mark.parametrize("script", SCRIPTS)
def test_imports_exist_and_are_used(script):
    text = read(script)
    code = IMPORT.sub("", text)

    for name, module in imported(text):
        assert name in EXPORT.findall(read(module))
        assert re.search(rf"\b{name}\b", code), f"{script} does not use {name} from {module}"


def test_exports_are_imported():
    used = set()
    for script in SCRIPTS:
        used |= {(module, name) for name, module in imported(read(script))}

    for script in SCRIPTS:
        for name in EXPORT.findall(read(script)):
            assert (script, name) in used, f"no script imports {name} from {script}"


def test_names_are_unique_in_all_scripts():
    """A page has one scope for all of its scripts, in which a second function of a name would replace the first."""
    declared = re.compile(r"^(?:export )?(?:async )?(?:const|let|function) (\w+)", re.MULTILINE)
    owners = {}
    for script in SCRIPTS:
        for name in declared.findall(read(script)):
            owners.setdefault(name, []).append(script)
    repeated = {name: scripts for name, scripts in owners.items() if len(scripts) > 1}

    # Each page has one of these two scripts.
    assert repeated == {"adjusted": ["history.js", "several.js"]}
