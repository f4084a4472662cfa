"""The examples in the docstrings run, and every public name has one."""

import dataclasses
import doctest
import importlib
import inspect

import pytest
import torch

from tests.support.public_surface import CALLED, package_modules

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


# Shared by the package's modules; users call the functions that use them.
SHARED = {"accumulator", "score_and_warn"}


def called_names() -> list:
    names = (*CALLED, ".core.matching", ".core.scores")
    modules = [importlib.import_module(f"bertscore_tm{name}") for name in names]
    values = [
        (f"{module.__name__}.{name}", getattr(module, name))
        for module in modules
        for name in module.__all__
        if name not in SHARED
    ]
    return [
        pytest.param(value, id=name)
        for name, value in values
        if inspect.isfunction(value) or (inspect.isclass(value) and not dataclasses.is_dataclass(value))
    ]


@pytest.mark.parametrize("value", called_names())
def test_called_names_have_an_example(value):
    assert ">>>" in inspect.getdoc(value)
