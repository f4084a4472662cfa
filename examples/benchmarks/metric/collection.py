"""Metrics on one encoder in a ``MetricCollection``, which encodes each batch once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torchmetrics import MetricCollection

from bertscore_tm import BERTScore
from examples.benchmarks.encoders import CountingEncoder, Counts
from examples.benchmarks.tables import Record
from examples.benchmarks.times import Times

__all__ = ["COLUMNS", "SETTINGS", "compare_collection"]

_BATCH_SIZE = 32

# Layer and further settings of each metric.
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (5, {}),
    "idf": (5, {"idf": True}),
    "layer 1": (1, {}),
    "layer 3": (3, {}),
    "layer 6": (6, {}),
}
COLUMNS = {
    "updated": "",
    "metrics": "",
    "calls": ",",
    "texts": ",",
    "tokens": ",",
    "wall_ratio": ".2f",
    "cpu_ratio": ".2f",
    "difference": ".1e",
}


def compare_collection(
    model: str, candidates: Sequence[str], references: Sequence[str], repeats: int = 3
) -> list[Record]:
    """Score with the metrics of ``SETTINGS`` in three ways, in turn.

    ``"in a collection"`` all of them get a batch before the next and share an encoder of all layers; ``"alone"`` each
    gets all batches before the next metric does, with the same encoder; ``"alone, cut"`` the same, but each has an
    encoder that ends at its layer. No vectors of references are kept.

    Args:
        model: name or folder of a model of at least six layers.
        candidates: the candidates.
        references: one reference each.
        repeats: how often to measure; of the times of a way the shortest counts.

    Returns:
        A record for each way: how many ``calls`` of the encoder there were, with how many ``texts`` and ``tokens``;
        wall and processor time, divided by those of the collection; and the largest ``difference`` of a mean F1 from
        the collection's.
    """
    whole = CountingEncoder(model, all_layers=True)
    cut = {layer: CountingEncoder(model, num_layers=layer) for layer, _ in SETTINGS.values()}
    shared = {name: _metric(whole, layer, options) for name, (layer, options) in SETTINGS.items()}
    alone = {name: _metric(whole, layer, options) for name, (layer, options) in SETTINGS.items()}
    ending = {name: _metric(cut[layer], None, options) for name, (layer, options) in SETTINGS.items()}
    # Each way as groups of metrics that get a batch together.
    ways: dict[str, list[MetricCollection]] = {
        "in a collection": [MetricCollection({**shared})],
        "alone": [MetricCollection({name: metric}) for name, metric in alone.items()],
        "alone, cut": [MetricCollection({name: metric}) for name, metric in ending.items()],
    }
    encoders = [whole, *cut.values()]
    shortest: dict[str, Times] = {}
    counts: dict[str, Counts] = {}
    scores: dict[str, dict[str, Tensor]] = {}
    for _ in range(repeats):
        for way, groups in ways.items():
            before, start = _counted(encoders), Times.now()
            scores[way] = _score(groups, candidates, references)
            shortest[way] = (Times.now() - start).shorter(shortest.get(way))
            counts[way] = _counted(encoders) - before
    first, *_ = ways
    return [
        {
            "updated": way,
            "metrics": len(scores[way]),
            "calls": counts[way].calls,
            "texts": counts[way].texts,
            "tokens": counts[way].tokens,
            **shortest[way].ratios(shortest[first]),
            "difference": max(float((scores[way][name] - scores[first][name]).abs()) for name in SETTINGS),
        }
        for way in ways
    ]


def _metric(encoder: CountingEncoder, layer: int | None, options: dict[str, Any]) -> BERTScore:
    return BERTScore(encoder, layer, score="f1", cache_bytes=0, **options)


def _score(
    groups: Sequence[MetricCollection], candidates: Sequence[str], references: Sequence[str]
) -> dict[str, Tensor]:
    """Give all batches to one group after the other."""
    scores: dict[str, Tensor] = {}
    for group in groups:
        for start in range(0, len(candidates), _BATCH_SIZE):
            batch = slice(start, start + _BATCH_SIZE)
            group.update(candidates[batch], references[batch])
        scores |= group.compute()
        group.reset()
    return scores


def _counted(encoders: Sequence[CountingEncoder]) -> Counts:
    return sum((encoder.counts for encoder in encoders), Counts())
