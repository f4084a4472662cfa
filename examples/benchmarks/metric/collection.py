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
    """Compare three arrangements of the metrics of ``SETTINGS``, measured in turn.

    ``"in a collection"``: each batch goes to all metrics, which share an encoder of all layers. ``"alone"``: all
    batches go to one metric after the other, with the same encoder. ``"alone, cut"``: as ``"alone"``, each metric with
    an encoder that ends at its layer. References are not cached.

    Args:
        model: name or folder of a model of at least six layers.
        candidates: the candidates.
        references: one reference each.
        repeats: number of timings of each arrangement; the shortest counts.

    Returns:
        A record for each arrangement: the ``calls`` of the encoder with their ``texts`` and ``tokens``; the ratios of
        wall and CPU time to those of the collection; and the largest ``difference`` of a mean F1 from the collection's.
    """
    whole = CountingEncoder(model, all_layers=True)
    cut = {layer: CountingEncoder(model, num_layers=layer) for layer, _ in SETTINGS.values()}
    shared = {name: _metric(whole, layer, options) for name, (layer, options) in SETTINGS.items()}
    alone = {name: _metric(whole, layer, options) for name, (layer, options) in SETTINGS.items()}
    ending = {name: _metric(cut[layer], None, options) for name, (layer, options) in SETTINGS.items()}
    # Each arrangement is a list of groups; the metrics of a group get each batch together.
    arrangements: dict[str, list[MetricCollection]] = {
        "in a collection": [MetricCollection({**shared})],
        "alone": [MetricCollection({name: metric}) for name, metric in alone.items()],
        "alone, cut": [MetricCollection({name: metric}) for name, metric in ending.items()],
    }
    encoders = [whole, *cut.values()]
    shortest: dict[str, Times] = {}
    counts: dict[str, Counts] = {}
    scores: dict[str, dict[str, Tensor]] = {}
    for _ in range(repeats):
        for arrangement, groups in arrangements.items():
            before, start = _counted(encoders), Times.now()
            scores[arrangement] = _score(groups, candidates, references)
            shortest[arrangement] = (Times.now() - start).shorter(shortest.get(arrangement))
            counts[arrangement] = _counted(encoders) - before
    first, *_ = arrangements
    return [
        {
            "updated": arrangement,
            "metrics": len(scores[arrangement]),
            "calls": counts[arrangement].calls,
            "texts": counts[arrangement].texts,
            "tokens": counts[arrangement].tokens,
            **shortest[arrangement].ratios(shortest[first]),
            "difference": max(float((scores[arrangement][name] - scores[first][name]).abs()) for name in SETTINGS),
        }
        for arrangement in arrangements
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
