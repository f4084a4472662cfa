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
    folders = {folder: importlib.import_module(folder).__path__[:1] for folder in FOLDERS}
    modules = {module.name for name, path in folders.items() for module in pkgutil.walk_packages(path, f"{name}.")}
    return sorted(name for name in {*FOLDERS, *modules} if not name.endswith(".__main__"))


def exported_names() -> dict[str, Any]:
    """Return what users call, by its full name."""
    modules = [importlib.import_module(f"{PACKAGE}{name}") for name in CALLED]
    return {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
