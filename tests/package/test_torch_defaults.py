"""Every entry point under another default dtype, as Lightning sets it, and another default device: equal results."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import bertscore_tm
import bertscore_tm.callbacks
import bertscore_tm.losses
from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.losses import (
    SoftBERTScoreLoss,
    VocabularyBridge,
)
from tests.support.models import save_tiny_model, tiny_model

PREDS = ["a cat sat on the mat", "it rains", "", "word " * 20]
TARGET = [["the cat is on the mat", "a dog"], ["rain falls in the city"], ["some text"], ["words and words"]]
SINGLE = [several[0] for several in TARGET]
LAYERS = 1


class Given:
    """What entry points get; made under the usual defaults."""

    def __init__(self, folder: Path) -> None:
        model, tokenizer = tiny_model("bert")
        self.encoder = FrozenEncoder(model, tokenizer, num_layers=LAYERS, max_length=12)
        self.every = FrozenEncoder(model, tokenizer, num_layers=LAYERS, all_layers=True)
        self.gemma = FrozenEncoder(*tiny_model("gemma"), num_layers=LAYERS)
        self.windows = FrozenEncoder(model, tokenizer, num_layers=LAYERS, max_length=12, long_text="window")
        self.numbers = torch.tensor([4, 5, 6, 7])
        self.model_folder = save_tiny_model("bert", folder / "model")
        self.table = folder / "table.csv"
        self.table.write_text(
            "LAYER,P,R,F\n" + "".join(f"{layer},.{layer}1,.{layer}2,.{layer}3\n" for layer in range(4))
        )
        self.rescaled = {"rescale": self.table}
        labels = [self.encoder.tokenizer([text]).ids[0] for text in ("a cat sat", "it rains in")]
        self.labels = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row) for row in labels], batch_first=True, padding_value=-100
        )
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(*self.labels.shape, len(tokenizer), generator=generator)
        self.hidden = torch.randn(*self.labels.shape, 8, generator=generator)
        self.head = torch.randn(len(tokenizer), 8, generator=generator)
        # Of another vocabulary.
        self.generator_tokenizer = tiny_model("gpt2")[1]
        self.generator_labels = torch.tensor([self.generator_tokenizer("a cat sat")["input_ids"]])
        shape = (*self.generator_labels.shape, len(self.generator_tokenizer))
        self.generator_logits = torch.randn(*shape, generator=generator)

    def metric(self, encoder: FrozenEncoder | None = None, **options: Any) -> BERTScore:
        """A metric on the CPU: torchmetrics puts its metrics on the default device."""
        default = torch.get_default_device()
        with torch.device("cpu") if default.type == "meta" else nullcontext():
            return BERTScore(encoder or self.encoder, **options)


def call_function(given: Given) -> Any:
    return [
        bert_score(PREDS, TARGET, given.encoder, idf=True, return_best_reference=True, **given.rescaled),
        bert_score(PREDS, TARGET, given.every, idf=SINGLE),
        bert_score(PREDS, TARGET, given.windows),
        bert_score([], [], given.encoder),
    ]


def call_loading(given: Given) -> Any:
    loaded = FrozenEncoder(given.model_folder, num_layers=LAYERS)
    # Gemma has a buffer that is not saved.
    pickled = [pickle.loads(pickle.dumps(encoder)) for encoder in (given.encoder, given.gemma)]
    return [encoder.encode(PREDS) for encoder in (loaded, *pickled)]


def call_metric(given: Given) -> Any:
    results = []
    for options in (
        {"confidence": 0.9},
        {"idf": True, "confidence": 0.9},
        {"idf": True, "reduction": "none", **given.rescaled},
        {"component": "f1", **given.rescaled},
        {"encoder": given.every},
        {"encoder": given.every, "layer": 0},
        {"idf": SINGLE, "compute_on_cpu": True},
    ):
        metric = given.metric(**options)
        results.append([metric.compute(), metric(PREDS, TARGET, indices=[3, 2, 1, 0]), metric([], [])])
        metric.update(PREDS, SINGLE, indices=given.numbers)
        other = metric.clone()
        other.merge_state(metric)
        metric.persistent(True)
        other.load_state_dict(metric.state_dict())
        results.append([metric.compute(), metric.token_weights().table, metric.per_pair()(PREDS, TARGET)])
        metric.reset()
        results.append([metric.compute(), other.compute()])
    return results


def call_loss(given: Given) -> Any:
    results: list[Any] = []
    for options in (
        {"idf": SINGLE},
        {"matching": "max"},
    ):
        loss, logits = SoftBERTScoreLoss(given.encoder, **options), given.logits.clone().requires_grad_()
        value, components = loss(logits, given.labels, return_components=True)
        value.backward()
        results += [value, components, logits.grad, loss(given.logits, ["a cat", ["rain", "a dog"]])]
    hidden = given.hidden.clone().requires_grad_()
    value = SoftBERTScoreLoss(given.encoder).forward_hidden(hidden, given.head, given.labels, return_cross_entropy=True)
    sum(value).backward()
    return [*results, value, hidden.grad]


def call_bridge(given: Given) -> Any:
    results = []
    for mode in ("expand", "mean"):
        bridge = VocabularyBridge(given.generator_tokenizer, given.encoder, mode, min_fidelity=0)
        loss = SoftBERTScoreLoss(given.encoder, bridge, idf=SINGLE)
        results += [loss(given.generator_logits, given.generator_labels), loss(given.generator_logits, ["a cat"])]
    return results


CALLS: list[Callable[[Given], Any]] = [
    call_function,
    call_loading,
    call_metric,
    call_loss,
    call_bridge,
]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None, None, None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def leaves(result: Any) -> list[Any]:
    """All tensors and other values, also those of dataclasses."""
    found = []
    for leaf in tree_leaves(result):
        found += leaves(list(vars(leaf).values())) if hasattr(leaf, "__dataclass_fields__") else [leaf]
    return found


def assert_equal(found: Any, expected: Any) -> None:
    found, expected = leaves(found), leaves(expected)
    assert [type(value) for value in found] == [type(value) for value in expected]
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6, equal_nan=True)
        else:
            assert one == (pytest.approx(other, abs=1e-6, nan_ok=True) if isinstance(one, float) else other)


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Given:
    return Given(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def expected(given) -> Callable[[Callable[[Given], Any]], Any]:
    return cache(lambda call: call(given))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "default"),
    [
        pytest.param(call, default, id=f"{call.__name__.removeprefix('call_')} {default}")
        for call in CALLS
        for default in (torch.float64, torch.bfloat16, torch.device("meta"))
    ],
)
def test_results_do_not_depend_on_the_defaults_of_torch(given, expected, call, default):
    usual = expected(call)
    with default if isinstance(default, torch.device) else default_dtype(default):
        found = call(given)
    assert_equal(found, usual)


FLOATING = {"empty", "full", "ones", "rand", "randn", "zeros"}
FACTORIES = FLOATING | {"arange", "as_tensor", "eye", "linspace", "randint", "randperm", "tensor"}


def test_every_new_tensor_names_its_device_and_dtype():
    folders = {Path(package.__file__).parent for package in (bertscore_tm, bertscore_tm.callbacks, bertscore_tm.losses)}
    missing = []
    for path in chain.from_iterable(folder.rglob("*.py") for folder in folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("torch."):
                continue
            name, given = ast.unparse(node.func).removeprefix("torch."), {keyword.arg for keyword in node.keywords}
            # Integers and bools have a dtype of their own.
            wanted = {"device", "dtype"} if name in FLOATING else {"device"}
            if name in FACTORIES and not wanted <= given:
                missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not missing
