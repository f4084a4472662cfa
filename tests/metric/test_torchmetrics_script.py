"""A script that is written for torchmetrics' BERTScore runs with ours."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import bert_score as oracle
import pytest
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.text.bert import BERTScore as TheirBERTScore

from bertscore_tm import BERTScore
from bertscore_tm.functional import SCORES
from tests.support.metric_kinds import LAYERS, TOLERANCE, assert_close

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = """
from torchmetrics import MetricCollection
from torchmetrics.text.bert import BERTScore
from torchmetrics.functional.text.bert import bert_score


def run(path, table, preds, target):
    settings = {"model_name_or_path": path, "num_layers": 2, "max_length": 64, "truncation": True, "batch_size": 4}
    found = {}

    metric = BERTScore(**settings, idf=True, lang="en", device="cpu", num_threads=0, verbose=False, return_hash=True)
    for start in range(0, len(preds), 2):
        metric.update(preds[start : start + 2], target[start : start + 2])
    scores = metric.compute()
    found["idf"] = {name: scores[name] if name == "hash" else scores[name].mean() for name in scores}

    metric = BERTScore(**settings, idf=False, rescale_with_baseline=True, baseline_path=table)
    found["steps"] = [metric([pred], [ref]) for pred, ref in zip(preds, target)]
    found["rescaled"] = {name: value.mean() for name, value in metric.compute().items()}
    metric.reset()
    metric.update(preds=preds[0], target=target[0])
    found["string"] = metric.clone().compute()

    metric = BERTScore(path, None, True, max_length=64, truncation=True)
    metric.update(preds[-1:], target[-1:])
    found["all layers"] = metric.compute()

    metric = BERTScore(**settings)
    metric.update(preds[-1:], [target[2:]])
    found["references"] = {name: value.mean() for name, value in metric.compute().items()}

    collection = MetricCollection([BERTScore(**settings)], prefix="val_", postfix="_bert")
    found["collection step"] = collection(preds[:1], target[:1])
    collection.update(preds[1:], target[1:])
    found["collection"] = {name: value.mean().item() for name, value in collection.compute().items()}

    found["function"] = bert_score(preds, target, path, num_layers=2, max_length=64, truncation=True, return_hash=True)
    found["facts"] = (metric.higher_is_better, metric.is_differentiable, metric.full_state_update)
    return found
"""
# Growing on both sides, since torchmetrics sorts candidates and references by length, each for themselves.
GROWING = (
    [
        "cats",
        "good morning",
        "it rains in Paris",
        "the train was very late today",
        "a dog barked at the small cat there",
    ],
    [
        "cat",
        "hello there",
        "rain falls in Paris",
        "today the train came too late",
        "the little cat heard how a dog barked",
    ],
)


def run_script(script: str, *args: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(script, "script.py", "exec"), names)
    return names["run"](*args)


def described(value: Any) -> Any:
    """Keys and types, all the way down."""
    if isinstance(value, dict):
        return {name: described(part) for name, part in value.items()}
    return [described(part) for part in value] if isinstance(value, list) else type(value)


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, Tensor):
        return value.flatten().tolist()
    if isinstance(value, dict | list):
        return [
            number for part in (value.values() if isinstance(value, dict) else value) for number in numbers_in(part)
        ]
    return [value] if isinstance(value, float) else []


@pytest.mark.filterwarnings("ignore::UserWarning:torchmetrics")
def test_only_the_import_changes(workshop, minilm):
    ours = SCRIPT
    for module in ("torchmetrics.functional.text.bert", "torchmetrics.text.bert"):
        ours = ours.replace(f"from {module} import", "from bertscore_tm import")
    changed = [line for line in zip(SCRIPT.splitlines(), ours.splitlines(), strict=True) if line[0] != line[1]]
    assert len(changed) == 2
    arguments = minilm, workshop.table, *GROWING
    theirs, found = run_script(SCRIPT, *arguments), run_script(ours, *arguments)
    assert described(found) == described(theirs)
    assert list(found["idf"]) == list(theirs["idf"])
    assert found["facts"] == theirs["facts"]
    # The other one cannot match special tokens, which is all that is between the two where its pairs are right.
    for name, value in found.items():
        assert len(numbers_in(value)) == len(numbers_in(theirs[name]))
        assert numbers_in(value) == pytest.approx(numbers_in(theirs[name]), abs=0.05), name

    preds, target = GROWING
    one = {"model_type": minilm, "batch_size": 1, "nthreads": 0}
    plain = oracle.score(preds, target, num_layers=LAYERS, **one)
    weighted = oracle.score(preds, target, num_layers=LAYERS, idf=True, **one)
    rescaled = oracle.score(
        preds, target, num_layers=LAYERS, lang="en", rescale_with_baseline=True, baseline_path=workshop.table, **one
    )
    layers = oracle.score(preds[-1:], target[-1:], num_layers=6, all_layers=True, **one)
    best = oracle.score(preds[-1:], [target[2:]], num_layers=LAYERS, **one)
    for place, name in enumerate(SCORES):
        assert_close(found["function"][name], plain[place])
        assert_close(found["idf"][name], weighted[place].mean())
        assert_close(torch.stack([step[name] for step in found["steps"]]), rescaled[place])
        assert_close(found["rescaled"][name], rescaled[place].mean())
        assert_close(found["string"][name], rescaled[place][0])
        assert_close(found["all layers"][name], layers[place][:, 0])
        assert_close(found["references"][name], best[place][0])
        assert_close(found["collection step"][f"val_{name}_bert"], plain[place][0])
        assert found["collection"][f"val_{name}_bert"] == pytest.approx(plain[place].mean().item(), abs=TOLERANCE)


@pytest.mark.parametrize("method", ["__init__", "update", "compute", "merge_state", "plot", "reset"])
def test_arguments_have_torchmetrics_names_and_places(method):
    def arguments(owner: type[Metric]) -> list[tuple[str, Any]]:
        function: Callable[..., Any] = getattr(owner, method)
        return [(name, one.kind) for name, one in inspect.signature(function).parameters.items()]

    theirs = [one for one in arguments(TheirBERTScore) if one[1] is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert arguments(BERTScore)[: len(theirs)] == theirs
