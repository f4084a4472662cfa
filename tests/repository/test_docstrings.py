"""Public names have examples that run and few arguments, and every public method is used."""

import dataclasses
import doctest
import importlib
import inspect
import re

import pytest
import torch

from tests.support.markdown_blocks import ROOT
from tests.support.public_surface import PACKAGE, exported_names, package_modules

EXPORTED = exported_names()
CLASSES = [value for value in EXPORTED.values() if inspect.isclass(value)]
# Arguments at most.
MOST = 15
FEWER = {"BERTScore": 10, "bert_score": 9, "SoftBERTScoreLoss": 13, "BERTScoreReward": 11, "align": 6}


@pytest.mark.parametrize("module_name", package_modules())
def test_examples_run(encoder, module_name):
    # Most examples use this model, so hold it in memory for them.
    encoder.backbone("cpu")
    module = importlib.import_module(module_name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    for test in finder.find(module, globs={**vars(module), "torch": torch}):
        runner.run(test, out=report.append)

    assert runner.failures == 0, "".join(report)


def is_called(value):
    return inspect.isfunction(value) or (inspect.isclass(value) and not dataclasses.is_dataclass(value))


@pytest.mark.parametrize("name", [name for name, value in EXPORTED.items() if is_called(value)])
def test_called_names_have_an_example(name):
    assert ">>>" in inspect.getdoc(EXPORTED[name])


def parameters(value):
    variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    every = inspect.signature(value).parameters.values()
    return {parameter.name for parameter in every if parameter.kind not in variable} - {"self"}


def test_few_arguments_and_no_option_of_the_encoder():
    """Except for the drop-ins, whose arguments are those of others."""
    arguments = {}
    for path, value in EXPORTED.items():
        name = path.rpartition(".")[2]
        if ".compat." in path or not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        arguments[name] = parameters(value)
        for method in vars(value) if inspect.isclass(value) else ():
            if not method.startswith("_") and callable(getattr(value, method)):
                arguments[f"{name}.{method}"] = parameters(getattr(value, method))

    assert {*FEWER, "BERTScoreCallback", "rank_candidates", "mean_interval", "FrozenEncoder.encode"} <= arguments.keys()
    assert not [name for name, names in arguments.items() if len(names) > FEWER.get(name, MOST)]
    # Others have a generator's model and tokenizer, and a device of their tensors.
    options = arguments["FrozenEncoder"] - {"model", "tokenizer", "device"}
    assert {"num_layers", "dtype", "max_length", "batch_size"} <= options
    assert not [name for name, names in arguments.items() if names & options and not name.startswith("FrozenEncoder")]


def test_every_public_method_is_used():
    """In a test or by the package, if it is not a hook that a base class of another package calls."""
    folders = ("bertscore_tm", "callbacks", "losses", "tests")
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    used = set(re.findall(r"\.(\w+)", "".join(sources)))
    unused = []
    for value in CLASSES:
        own = [owner for owner in value.__mro__ if owner.__module__.startswith(PACKAGE)]
        hooks = {name for owner in {*value.__mro__} - {*own} for name in vars(owner)}
        names = {name for owner in own for name in vars(owner) if not name.startswith("_")}
        unused += [f"{value.__name__}.{name}" for name in names - hooks - used]

    assert not unused
