"""Any number of ranks and samples gives the scores of one process, and the bytes that are sent are bounded."""

from __future__ import annotations

import warnings
from itertools import chain, product
from typing import Any

import pytest
import torch
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES, bert_score
from tests.support.ranks import run_ranks
from tests.support.texts import real_pairs, several_references

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    # With idf all tokens of a single reference weigh 0.
    pytest.mark.filterwarnings("ignore:1 candidate scored 0"),
]

TOLERANCE = 1e-6
LAYERS = 2
SIZES = (1, 7, 12)
# Of each text; what is compared depends on numbers of texts, not on their lengths.
WORDS = 8
# Whether idf, several references, all layers: every pair of two of them in every combination.
KINDS = [(False, False, False), (True, True, False), (True, False, True), (False, True, True)]
Data = dict[bool, tuple[list[str], list[Any]]]


def texts(count: int) -> Data:
    preds, target = ([" ".join(text.split()[:WORDS]) for text in side] for side in real_pairs(count))
    return {False: (preds, target), True: (preds, several_references(target))}


def part(data: tuple[list[str], list[Any]], numbers: list[int]) -> tuple[list[str], list[Any]]:
    return [data[0][i] for i in numbers], [data[1][i] for i in numbers]


def uneven(size: int, world_size: int, rank: int) -> list[int]:
    """Interleaved, half of the rest to the first rank and so on; the last rank has nothing."""
    return [i for i in range(size) if min((i * i + i) % 7, world_size - 2) == rank]


def as_sampled(size: int, world_size: int, rank: int) -> list[int]:
    """As ``DistributedSampler`` deals out a data set: in turn, with its beginning repeated until all have as many."""
    padded = -(-size // world_size) * world_size
    return [i % size for i in range(padded)][rank::world_size]


def scored(metrics: list[BERTScore], data: tuple[list[str], list[Any]], numbers: list[int], indexed: bool) -> list[Any]:
    """What the ranks compute together when this one has the pairs of these numbers, in batches of 3."""
    for start in range(0, len(numbers), 3):
        batch = numbers[start : start + 3]
        for metric in metrics:
            metric.update(*part(data, batch), indices=batch if indexed else None)
    return [metric.compute() for metric in metrics]


def score_all(rank: int, world_size: int, model: str, data: Data) -> dict[Any, dict[str, Tensor]]:
    warnings.filterwarnings("ignore", "1 candidate scored 0")
    encoder = FrozenEncoder(model, num_layers=LAYERS, all_layers=True)
    found: dict[Any, dict[str, Tensor]] = {}
    for size, kind in product(SIZES, KINDS):
        idf, several, all_layers = kind
        options: dict[str, Any] = {"idf": idf} | ({} if all_layers else {"layer": LAYERS})
        for name, numbers, indexed in (
            ("uneven", uneven(size, world_size, rank), False),
            ("uneven, indexed", uneven(size, world_size, rank)[::-1], True),
            ("sampled, indexed", as_sampled(size, world_size, rank), True),
        ):
            metrics = [BERTScore(encoder, reduction="none", **options), BERTScore(encoder, **options)]
            each, average = scored(metrics, data[several], numbers, indexed)
            found[name, size, kind], found[name + ", mean", size, kind] = each, average
    return found


@pytest.fixture(scope="module")
def in_one_process(minilm) -> dict[Any, dict[str, Tensor]]:
    data = texts(max(SIZES))
    found = {}
    for size, kind in product(SIZES, KINDS):
        idf, several, all_layers = kind
        encoder = FrozenEncoder(minilm, num_layers=LAYERS, all_layers=all_layers)
        found[size, kind] = bert_score(*part(data[several], list(range(size))), encoder, idf=idf)
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_equals_one_process(minilm, in_one_process, world_size):
    data = texts(max(SIZES))
    reports = run_ranks(score_all, world_size, world_size, minilm, data, timeout_s=300)
    largest: dict[int, float] = dict.fromkeys(SIZES, 0.0)
    orders = {size: list(chain(*(uneven(size, world_size, rank) for rank in range(world_size)))) for size in SIZES}
    for size, kind in product(SIZES, KINDS):
        expected = in_one_process[size, kind]
        assert sorted(orders[size]) == list(range(size))
        for name in ("uneven", "uneven, indexed", "sampled, indexed"):
            order = list(range(size)) if "indexed" in name else orders[size]
            for score in SCORES:
                in_order = expected[score][..., order]
                for key, values in ((name, in_order), (name + ", mean", in_order.double().mean(-1).float())):
                    first = reports[0][key, size, kind][score]
                    assert first.shape == values.shape
                    assert all(torch.equal(report[key, size, kind][score], first) for report in reports)
                    largest[size] = max(largest[size], float((first - values).abs().max()))
    print(f"{world_size} ranks:", ", ".join(f"{size} samples {value:.1e}" for size, value in largest.items()))
    assert max(largest.values()) <= TOLERANCE


class Sent:
    """Counts the bytes that this rank puts into collectives."""

    def __init__(self) -> None:
        self.bytes = 0
        for name, position in (("all_gather", 1), ("all_reduce", 0)):
            setattr(torch.distributed, name, self._counted(getattr(torch.distributed, name), position))
        for name in ("all_gather_into_tensor", "all_gather_object", "broadcast", "gather", "reduce", "send"):
            setattr(torch.distributed, name, self._unexpected)

    def _counted(self, function: Any, position: int) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.bytes += args[position].numel() * args[position].element_size()
            return function(*args, **kwargs)

        return counted

    def _unexpected(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a collective that is not counted")

    def by(self, metric: BERTScore, preds: list[str], target: list[Any], indices: list[int] | None) -> int:
        metric.update(preds, target, indices=indices)
        self.bytes = 0
        metric.compute()
        return self.bytes


def send(rank: int, model: str, pairs: tuple[list[str], list[str]]) -> dict[Any, int]:
    sent = Sent()
    encoder = FrozenEncoder(model, num_layers=1)
    options: dict[str, dict[str, Any]] = {
        "mean": {},
        "none": {"reduction": "none"},
        "idf": {"idf": True},
        "corpus": {"idf": pairs[1][:5]},
        "confidence": {"confidence": 0.9},
    }
    found = {}
    for (name, settings), count, long, indexed in product(options.items(), (10, 30), (False, True), (False, True)):
        preds, target = ([text * (3 if long else 1) for text in side[:count]] for side in pairs)
        # Two numbers in common, of which each is sent by both ranks before it is found to be the same.
        indices = [rank * (count - 2) + i for i in range(count)] if indexed else None
        found[name, count, long, indexed] = sent.by(BERTScore(encoder, **settings), preds, target, indices)
    return found


def test_bytes_grow_with_pairs_and_vocabulary_alone(minilm):
    found, other = run_ranks(send, 2, minilm, texts(30)[False], fresh=True)
    vocabulary = FrozenEncoder(minilm, num_layers=1).tokenizer.vocab_size
    per_score, per_index, per_token_id = 3 * 4, 8, 8
    # Counts and settings: of a fixed size. Before each gathering the length of what is to come.
    header, length = 8 * (4 + 8), 8
    for (name, count, _long, indexed), sent in found.items():
        scores = length + per_score * count
        indices = length + per_index * count if indexed else 0
        frequencies = per_token_id * (vocabulary + 1) if name == "idf" else 0
        # The second rank has the common pairs second, so that it sends two scores less, padded to the longest.
        assert sent <= length + header + scores + indices + frequencies, (name, count, indexed)
        assert sent >= header + frequencies + per_score * (count - 2)
    for (name, count, _, indexed), sent in found.items():
        assert found[name, count, True, indexed] == sent, "bytes do not depend on the number of tokens"
    assert found["idf", 30, False, True] - found["idf", 10, False, True] == (per_score + per_index) * 20
    assert found["mean", 30, False, False] == found["corpus", 30, False, False] == found["none", 30, True, False]
    assert other.keys() == found.keys()
