"""Every entry point under settings of torch, such as a default dtype or autocast: the results are the usual ones.

Compiled calls are in tests/workflows/test_compiled_steps.py.
"""

import ast
import pickle
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.precision.utils import _DtypeContextManager
from torch import Tensor
from torch.utils._pytree import tree_leaves

import bertscore_tm
import bertscore_tm.callbacks
import bertscore_tm.losses
from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge
from tests.support.entry_points import ENTRY_POINTS, PREDS, TARGET, make_metric, run_score_on_pairs
from tests.support.models import save_tiny_model, tiny_model

WITH_GRADIENTS = {
    # Precisions of Lightning's Trainer set these two: "64-true" and "bf16-true".
    "default dtype float64": lambda: _DtypeContextManager(torch.float64),
    "default dtype bfloat16": lambda: _DtypeContextManager(torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
SETTINGS = WITH_GRADIENTS | {"no_grad": torch.no_grad, "inference mode": torch.inference_mode}
TEXTS = ["a cat sat on the mat", "it rains", "", "word " * 20]
REFERENCES = [["the cat is on the mat", "a dog"], ["rain falls in the city"], ["some text"], ["words and words"]]
ALL = ENTRY_POINTS | {"shell": run_score_on_pairs}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """Folder of a tiny model."""
    return save_tiny_model("bert", tmp_path_factory.mktemp("model"))


@cache
def usual_scores(model: str, entry_point: str) -> list[float]:
    return ALL[entry_point](FrozenEncoder(model, num_layers=2), PREDS, TARGET)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("entry_point", ALL)
def test_scores_are_the_usual_ones_in_any_setting(model, entry_point, setting):
    expected = usual_scores(model, entry_point)

    with SETTINGS[setting]():
        scores = ALL[entry_point](FrozenEncoder(model, num_layers=2), PREDS, TARGET)

    assert scores == pytest.approx(expected, abs=1e-6)


def encoder_of(family: str = "bert", **options: Any) -> FrozenEncoder:
    return FrozenEncoder(*tiny_model(family), **{"num_layers": 1} | options)


def score_with_options(table: str) -> Any:
    """Scores with long texts, all layers, weights and a baseline."""
    windows = encoder_of(max_length=12, long_text="window")
    all_layers = encoder_of(num_layers=None, all_layers=True)
    truncated = encoder_of(max_length=12)
    return [
        bert_score(TEXTS, REFERENCES, windows, idf=TEXTS),
        bert_score(TEXTS, REFERENCES, all_layers, idf=TEXTS),
        bert_score(TEXTS, REFERENCES, truncated, idf=True, rescale=table),
        bert_score([], [], truncated),
    ]


def load_and_encode(table: str) -> Any:
    """Vectors of models that are loaded from a folder, unpickled, or have a buffer that is not saved, as Gemma."""
    folder = save_tiny_model("bert", Path(table).parent / "model")
    encoders = [FrozenEncoder(folder, num_layers=1), encoder_of("gemma"), encoder_of(max_length=12)]
    return [pickle.loads(pickle.dumps(encoder)).encode(TEXTS) for encoder in encoders]


def use_metric(table: str) -> Any:
    """What a metric returns before, at and after an update, after a merge and for pairs."""
    encoder = encoder_of(max_length=12)
    results = []
    for options in ({}, {"idf": True, "rescale": table}, {"compute_on_cpu": True}):
        metric = make_metric(encoder, **options)
        results += [metric.compute(), metric(TEXTS, REFERENCES, indices=[3, 2, 1, 0]), metric([], [])]
        other = metric.clone()
        metric.reset()
        metric.update(TEXTS, REFERENCES, indices=[3, 2, 1, 0])
        other.merge_state(metric)
        results += [metric.compute(), other.compute(), metric.token_weights().table]
        results.append(metric.per_pair()(TEXTS, REFERENCES))
    return results


class Predictions:
    """Logits, hidden states and an output layer, the same ones in any setting."""

    def __init__(self, encoder: FrozenEncoder) -> None:
        self.generator = torch.Generator("cpu").manual_seed(0)
        rows = [torch.tensor(ids, device="cpu") for ids in encoder.tokenizer(["a cat sat", "it rains in"]).rows()]
        self.labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
        size = encoder.tokenizer.vocab_size
        self.logits = self.draw(*self.labels.shape, size)
        self.hidden = self.draw(*self.labels.shape, 8)
        self.head = self.draw(size, 8)

    def draw(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=self.generator, dtype=torch.float32, device="cpu")
        return numbers.requires_grad_()


def compute_losses(table: str) -> Any:
    """Losses of texts, ids and hidden states, also of another vocabulary, and gradients where there are any."""
    encoder = encoder_of(max_length=12)
    given = Predictions(encoder)
    best = SoftBERTScoreLoss(encoder, matching="max")
    weighted = SoftBERTScoreLoss(encoder, idf=TEXTS)
    loss, components = weighted(given.logits, given.labels, return_components=True)
    of_hidden = weighted.forward_hidden(given.hidden, given.head, given.labels, return_cross_entropy=True)
    results = [best(given.logits, ["a cat", ["rain", "a dog"]]), loss, components, of_hidden]
    tokenizer = tiny_model("gpt2")[1]
    for mode in ("expand", "mean"):
        bridge = VocabularyBridge(tokenizer, encoder, mode, min_fidelity=0)
        results.append(SoftBERTScoreLoss(encoder, bridge, idf=TEXTS)(given.draw(1, 4, len(tokenizer)), ["a cat"]))
    if torch.is_grad_enabled():
        inputs = [given.logits, given.hidden, given.head]
        # Trainers compute gradients outside autocast.
        with torch.autocast("cpu", enabled=False):
            results += torch.autograd.grad(loss + sum(of_hidden), inputs)
    return results


def leaves(result: Any) -> list[Any]:
    """Return all tensors and other values, also those of dataclasses."""
    values = []
    for leaf in tree_leaves(result):
        is_record = hasattr(leaf, "__dataclass_fields__")
        values += leaves(list(vars(leaf).values())) if is_record else [leaf]
    return values


CALLS = [score_with_options, load_and_encode, use_metric, compute_losses]


@cache
def usual_results(call: Callable[[str], Any], table: str, has_gradients: bool) -> list[Any]:
    with torch.set_grad_enabled(has_gradients):
        return leaves(call(table))


@pytest.mark.filterwarnings("ignore:.*(scored 0|longer than 12|before the ``update``):UserWarning")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("call", CALLS)
def test_results_are_the_usual_ones_in_any_setting(call, setting, table):
    expected = usual_results(call, table, has_gradients=setting in WITH_GRADIENTS)

    with SETTINGS[setting]():
        results = leaves(call(table))

    torch.testing.assert_close(results, expected, rtol=0, atol=1e-6, equal_nan=True)


FLOATING = {"empty", "full", "ones", "rand", "randn", "zeros"}
FACTORIES = FLOATING | {"arange", "as_tensor", "eye", "linspace", "randint", "randperm", "tensor"}


def names_too_little(call: ast.Call) -> bool:
    """Return whether a call makes a tensor on the default device or in the default dtype."""
    function = ast.unparse(call.func)
    name = function.removeprefix("torch.")
    if name == function or name not in FACTORIES:
        return False
    # Integers and bools have a dtype of their own.
    required = {"device", "dtype"} if name in FLOATING else {"device"}
    given = {keyword.arg for keyword in call.keywords}
    return not required <= given


def test_every_new_tensor_names_its_device_and_dtype():
    folders = {Path(package.__file__).parent for package in (bertscore_tm, bertscore_tm.callbacks, bertscore_tm.losses)}
    missing = []

    for path in chain.from_iterable(folder.rglob("*.py") for folder in folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and names_too_little(node):
                missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")

    assert missing == []
