"""The examples in the docstrings run; every public name has one, and every public method is used."""

import dataclasses
import doctest
import importlib
import inspect
import re

import pytest
import torch

from tests.support.markdown_blocks import ROOT
from tests.support.public_surface import CALLED, PACKAGE, package_modules

MODULES = package_modules()


@pytest.mark.parametrize("module_name", MODULES)
def test_examples_run(module_name):
    module = importlib.import_module(module_name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    for test in finder.find(module, globs={**vars(module), "torch": torch}):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def called_names() -> list:
    modules = [importlib.import_module(f"{PACKAGE}{name}") for name in CALLED]
    values = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    return [
        pytest.param(value, id=name)
        for name, value in values.items()
        if inspect.isfunction(value) or (inspect.isclass(value) and not dataclasses.is_dataclass(value))
    ]


@pytest.mark.parametrize("value", called_names())
def test_called_names_have_an_example(value):
    assert ">>>" in inspect.getdoc(value)


def test_every_public_method_is_used():
    """In a test or by the package, if it is not a hook that a base class of another package calls."""
    folders = ("bertscore_tm", "callbacks", "losses", "tests")
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    used = set(re.findall(r"\.(\w+)", "".join(sources)))
    modules = [importlib.import_module(f"{PACKAGE}{name}") for name in CALLED]
    exported = [getattr(module, name) for module in modules for name in module.__all__]
    unused = []
    for value in filter(inspect.isclass, exported):
        own = [owner for owner in value.__mro__ if owner.__module__.startswith(PACKAGE)]
        hooks = {name for owner in {*value.__mro__} - {*own} for name in vars(owner)}
        names = {name for owner in own for name in vars(owner) if not name.startswith("_")}
        unused += [f"{value.__name__}.{name}" for name in names - hooks - used]
    assert not unused
