"""Every entry point under another default dtype, as Lightning sets it, and another default device: equal results."""

import ast
import pickle
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
from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge
from tests.support.models import save_tiny_model, tiny_model

PREDS = ["a cat sat on the mat", "it rains", "", "word " * 20]
TARGET = [["the cat is on the mat", "a dog"], ["rain falls in the city"], ["some text"], ["words and words"]]


def encoder_of(family: str = "bert", **options: Any) -> FrozenEncoder:
    return FrozenEncoder(*tiny_model(family), **{"num_layers": 1} | options)


def scores_of_function(encoder: FrozenEncoder, table: str) -> Any:
    encoders = [encoder_of(max_length=12, long_text="window"), encoder_of(num_layers=None, all_layers=True)]
    scores = [bert_score(PREDS, TARGET, other, idf=PREDS) for other in encoders]
    return [*scores, bert_score(PREDS, TARGET, encoder, idf=True, rescale=table), bert_score([], [], encoder)]


def vectors_of_loaded(encoder: FrozenEncoder, table: str) -> Any:
    # Gemma has a buffer that is not saved.
    loaded = [FrozenEncoder(save_tiny_model("bert", Path(table).parent / "model"), num_layers=1), encoder_of("gemma")]
    return [pickle.loads(pickle.dumps(each)).encode(PREDS) for each in (*loaded, encoder)]


def scores_of_metric(encoder: FrozenEncoder, table: str) -> Any:
    results = []
    for options in ({}, {"idf": True, "reduction": "none", "rescale": table}, {"compute_on_cpu": True}):
        # torchmetrics puts its metrics on the default device.
        with torch.device("cpu"):
            metric = BERTScore(encoder, **options)
        results.append([metric.compute(), metric(PREDS, TARGET, indices=[3, 2, 1, 0]), metric([], [])])
        other = metric.clone()
        metric.reset()
        metric.update(PREDS, TARGET, indices=[3, 2, 1, 0])
        other.merge_state(metric)
        results.append([metric.compute(), other.compute(), metric.token_weights().table])
        results.append(metric.per_pair()(PREDS, TARGET))
    return results


def losses_and_gradients(encoder: FrozenEncoder, table: str) -> Any:
    rows = [torch.tensor(ids, device="cpu") for ids in encoder.tokenizer(["a cat sat", "it rains in"]).rows()]
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    generator = torch.Generator("cpu").manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").requires_grad_()

    size = encoder.tokenizer.vocab_size
    logits, hidden, head = drawn(*labels.shape, size), drawn(*labels.shape, 8), drawn(size, 8)
    results = [SoftBERTScoreLoss(encoder, matching="max")(logits, ["a cat", ["rain", "a dog"]])]
    loss = SoftBERTScoreLoss(encoder, idf=PREDS)
    results += [*loss(logits, labels, return_components=True)]
    results += [*loss.forward_hidden(hidden, head, labels, return_cross_entropy=True)]
    results += torch.autograd.grad(results[1] + sum(results[-2:]), [logits, hidden])
    tokenizer = tiny_model("gpt2")[1]  # of another vocabulary
    for mode in ("expand", "mean"):
        bridge = VocabularyBridge(tokenizer, encoder, mode, min_fidelity=0)
        results.append(SoftBERTScoreLoss(encoder, bridge, idf=PREDS)(drawn(1, 4, len(tokenizer)), ["a cat"]))
    return results


def leaves(result: Any) -> list[Any]:
    """All tensors and other values, also those of dataclasses."""
    values = []
    for leaf in tree_leaves(result):
        values += leaves(list(vars(leaf).values())) if hasattr(leaf, "__dataclass_fields__") else [leaf]
    return values


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", [scores_of_function, vectors_of_loaded, scores_of_metric, losses_and_gradients])
def test_results_do_not_depend_on_the_defaults_of_torch(call, table):
    encoder = encoder_of(max_length=12)
    usual = leaves(call(encoder, table))
    for default in (_DtypeContextManager(torch.float64), _DtypeContextManager(torch.bfloat16), torch.device("meta")):
        with default:
            results = leaves(call(encoder, table))
        torch.testing.assert_close(results, usual, rtol=0, atol=1e-6, equal_nan=True)


FLOATING = {"empty", "full", "ones", "rand", "randn", "zeros"}
FACTORIES = FLOATING | {"arange", "as_tensor", "eye", "linspace", "randint", "randperm", "tensor"}


def test_every_new_tensor_names_its_device_and_dtype():
    folders = {Path(package.__file__).parent for package in (bertscore_tm, bertscore_tm.callbacks, bertscore_tm.losses)}
    missing = []
    for path in chain.from_iterable(folder.rglob("*.py") for folder in folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("torch."):
                continue
            name, keywords = ast.unparse(node.func).removeprefix("torch."), {keyword.arg for keyword in node.keywords}
            # Integers and bools have a dtype of their own.
            wanted = {"device", "dtype"} if name in FLOATING else {"device"}
            if name in FACTORIES and not wanted <= keywords:
                missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not missing
