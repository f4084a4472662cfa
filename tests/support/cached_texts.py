"""Batches of texts for metrics that cache vectors, what the model gets of them, and the memory that vectors take."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.core.token_vectors import TokenVectors
from bertscore_tm.encoder.tokenization import cut_into_windows
from bertscore_tm.functional import SCORES, bert_score
from tests.support.models import tiny_model
from tests.support.texts import real_pairs

CPU = torch.device("cpu")
TOLERANCE = 1e-6
COUNT = 9
# Real texts, cut short, as they are encoded many times.
PREDS, TARGET = ([" ".join(text.split()[:9]) for text in side] for side in real_pairs(COUNT))
LONG = " ".join(TARGET[:2])
# Some texts come twice in a batch or in two; some candidates equal a reference of their own batch, or of one before or
# after it.
BATCHES = [
    ([PREDS[0], PREDS[1], PREDS[0]], [TARGET[0], TARGET[1], TARGET[1]]),
    ([TARGET[2], PREDS[2], TARGET[0]], [TARGET[2], TARGET[3], TARGET[4]]),
    ([TARGET[5], PREDS[4]], [TARGET[6], TARGET[0]]),
    ([PREDS[1], PREDS[5]], [TARGET[5], LONG]),
]
SEVERAL = [(preds, [[one, TARGET[i]] if i % 2 else [one] for i, one in enumerate(target)]) for preds, target in BATCHES]
# Other candidates for the same references.
LATER = [([PREDS[(i + k + 3) % COUNT] for k in range(len(target))], target) for i, (_, target) in enumerate(BATCHES)]


def flat(target: Iterable[Any]) -> list[str]:
    return [text for given in target for text in ([given] if isinstance(given, str) else given)]


def ids(encoder: FrozenEncoder, texts: Iterable[str]) -> Counter[tuple[int, ...]]:
    """Token ids that the model gets when each of these texts is encoded: of whole texts, or of their windows."""
    rows = encoder.tokenizer(list(texts)).ids
    return Counter(tuple(window.ids) for row in rows for window in cut_into_windows(row, encoder.tokenizer))


def candidates_alone(encoder: FrozenEncoder, batches: Iterable[tuple[Any, Any]]) -> Counter[tuple[int, ...]]:
    """Token ids that the model gets when all references are cached: each batch's unique candidates."""
    return sum((ids(encoder, set(preds) - set(flat(target))) for preds, target in batches), Counter())


def everything(encoder: FrozenEncoder, batches: Iterable[tuple[Any, Any]]) -> Counter[tuple[int, ...]]:
    """Token ids that the model gets when nothing is cached: each batch's unique texts."""
    return sum((ids(encoder, {*preds, *flat(target)}) for preds, target in batches), Counter())


def references(batches: Iterable[tuple[Any, Any]]) -> set[str]:
    return {text for _, target in batches for text in flat(target)}


def taken(counts: Counter[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    """Return the counts so far, and reset them."""
    found = Counter(counts)
    counts.clear()
    return found


def epoch(metric: BERTScore, batches: Iterable[tuple[Any, Any]] = BATCHES) -> dict[str, Tensor]:
    """The scores of an epoch."""
    for batch in batches:
        metric.update(*batch)
    found: dict[str, Tensor] = metric.compute()
    metric.reset()
    return found


def of_function(encoder: FrozenEncoder, *batches: tuple[Any, Any], **options: Any) -> dict[str, Tensor]:
    """The function's scores of all batches together, for each pair."""
    preds = [text for batch in batches for text in batch[0]]
    target = [[given] if isinstance(given, str) else given for batch in batches for given in batch[1]]
    return bert_score(preds, target, encoder, **options)


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    for name in SCORES:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=tolerance)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, value in found.items():
        assert torch.equal(value, wanted[name])


def mean(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: scores[name].double().mean(-1).float() for name in SCORES}


def own_encoder(**options: Any) -> FrozenEncoder:
    """An encoder of a tiny model that no other test uses."""
    ready, tokenizer = tiny_model("bert")
    return FrozenEncoder(copy.deepcopy(ready), tokenizer, **{"num_layers": 2} | options)


def logits_for(encoder: FrozenEncoder, rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = len(encoder.embedding_table(CPU))
    return torch.randn(rows, 5, size, generator=generator).requires_grad_()


def live_vectors() -> list[TokenVectors]:
    """All token vectors in memory."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is TokenVectors]


def bytes_of_tensors(things: Iterable[Any], integers: bool = False) -> int:
    # Packed weights lie outside of torch's storages.
    tensors = [thing for thing in things if issubclass(type(thing), Tensor) and not thing.is_mkldnn]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.is_floating_point() != integers]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def live_bytes() -> int:
    """Memory of all floating point tensors."""
    gc.collect()
    return bytes_of_tensors(gc.get_objects())


def bytes_within(root: Any, integers: bool = False) -> int:
    """Memory of all floating point, or other, tensors that an object holds."""
    found, things = {id(root): root}, [root]
    while things:
        for thing in gc.get_referents(things.pop()):
            if id(thing) not in found and not isinstance(thing, type | ModuleType):
                found[id(thing)] = thing
                things.append(thing)
    return bytes_of_tensors(found.values(), integers)


def bytes_of(encoder: FrozenEncoder, text: str) -> int:
    """Memory of a text's token vectors in float32."""
    return 4 * int(encoder.config.hidden_size) * encoder.num_outputs * len(encoder.tokenizer([text]).ids[0])


def run_threads(*functions: Any) -> None:
    """Run functions in threads that switch as often as possible."""
    start, failed = threading.Barrier(len(functions)), []

    def guarded(function: Any) -> None:
        start.wait()
        try:
            function()
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failed == []
