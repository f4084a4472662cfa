"""Public callables have few arguments, and only the encoder has the options of encoding."""

import inspect
from collections.abc import Iterator
from typing import Any

import bertscore_tm
from bertscore_tm import callbacks, functional, losses, statistics

FACES = (bertscore_tm, functional, losses, callbacks, statistics)
MOST = 15
FEWER = {"BERTScore": 10, "bert_score": 9, "SoftBERTScoreLoss": 13, "BERTScoreReward": 9, "align": 6}
# The model and tokenizer of a generator, and where tensors are.
OTHERS = {"model", "tokenizer", "device"}


def public_callables() -> Iterator[tuple[str, Any]]:
    for face in FACES:
        for name in face.__all__:
            value = getattr(face, name)
            if inspect.isclass(value):
                methods = [each for each in vars(value) if not each.startswith("_") and callable(getattr(value, each))]
                yield from ((f"{name}.{each}", getattr(value, each)) for each in methods)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield name, value


def parameters(value: Any) -> set[str]:
    variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    every = inspect.signature(value).parameters.values()
    return {parameter.name for parameter in every if parameter.kind not in variable} - {"self"}


def test_few_arguments_and_no_option_of_the_encoder():
    arguments = {name: parameters(value) for name, value in public_callables()}
    assert {*FEWER, "BERTScoreCallback", "rank_candidates", "mean_interval", "FrozenEncoder.encode"} <= arguments.keys()
    assert not [name for name, names in arguments.items() if len(names) > FEWER.get(name, MOST)]
    options = arguments["FrozenEncoder"] - OTHERS
    assert {"num_layers", "dtype", "max_length", "batch_size"} <= options
    assert not [name for name, names in arguments.items() if names & options and not name.startswith("FrozenEncoder")]
