"""The modules of the package, and the names that users call."""

import importlib
import pkgutil
from typing import Any

PACKAGE = "bertscore_tm"
# Modules whose functions and classes users call; `make docs` has a page for each.
CALLED = ("", ".functional", ".losses", ".callbacks", ".catalog", ".statistics", ".scoring.baselines")
CALLED += (".compat.bert_score", ".compat.evaluate", ".compat.torchmetrics")
FOLDERS = (PACKAGE, f"{PACKAGE}.losses", f"{PACKAGE}.callbacks")


def package_modules() -> list[str]:
    """Return the names of all modules of the package except those that run when they are imported."""
    names = set(FOLDERS)
    for folder in FOLDERS:
        path = importlib.import_module(folder).__path__[:1]
        names |= {module.name for module in pkgutil.walk_packages(path, f"{folder}.")}
    return sorted(name for name in names if not name.endswith(".__main__"))


def exported_names() -> dict[str, Any]:
    """Return what users call, by its full name."""
    exported = {}
    for path in CALLED:
        module = importlib.import_module(f"{PACKAGE}{path}")
        for name in module.__all__:
            exported[f"{module.__name__}.{name}"] = getattr(module, name)
    return exported
