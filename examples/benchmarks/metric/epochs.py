"""Time saved by the reference cache in repeated validations of one data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, stack

from bertscore_tm import BERTScore
from bertscore_tm.functional import SCORES
from examples.benchmarks.encoders import CountingEncoder, Counts
from examples.benchmarks.tables import Record
from examples.benchmarks.times import Times
from examples.docstrings import DocstringPair

__all__ = ["COLUMNS", "changing_candidates", "run_epochs"]

_BATCH_SIZE = 32
_CACHED, _UNCACHED = "cached", "uncached"

COLUMNS = {
    "epoch": "",
    "same_candidates": "",
    "texts_cached": ",",
    "texts_uncached": ",",
    "tokens_cached": ",",
    "tokens_uncached": ",",
    "wall_ratio": ".2f",
    "cpu_ratio": ".2f",
    "cache_bytes": ",",
    "vector_bytes": ",",
    "difference": ".1e",
    "change": ".1e",
}


@dataclass(frozen=True)
class _Validation:
    counts: Counts
    times: Times
    scores: Tensor


def changing_candidates(pairs: Sequence[DocstringPair], num_epochs: int) -> list[list[str]]:
    """Return candidates with as many words of each document as its summary has, shifted by one word per epoch.

    Like a generator's texts, they are about as long as the references, differ from them, and change a little.

    Args:
        pairs: documents and summaries.
        num_epochs: number of epochs.

    Returns:
        The candidates of each epoch.
    """
    words = [(pair.document.split(), len(pair.summary.split())) for pair in pairs]
    return [[" ".join(text[epoch : epoch + count]) for text, count in words] for epoch in range(num_epochs)]


def run_epochs(
    encoder: CountingEncoder, candidates: Sequence[Sequence[str]], references: Sequence[str], repeats: int = 3
) -> list[Record]:
    """Score the candidates of each epoch, with the cache of references and without, in turn.

    Args:
        encoder: the encoder; its cache is cleared.
        candidates: the candidates of each epoch.
        references: their references, the same in each epoch.
        repeats: number of runs, each with an empty cache at first; the shortest time of an epoch counts.

    Returns:
        A record for each epoch: whether it has the ``same_candidates`` as the epoch before; the encoded texts and
        tokens with and without the cache; the ratios of wall and CPU time with the cache to those without; the memory
        reserved by the cache, and the bytes of the references' vectors; the largest ``difference`` of a score with and
        without the cache; and, for equal candidates, the largest ``change`` of a score since the epoch before.
    """
    metrics = {
        _CACHED: BERTScore(encoder, reduction="none"),
        _UNCACHED: BERTScore(encoder, reduction="none", cache_bytes=0),
    }
    cache = encoder.cache(metrics[_CACHED].device)
    vector_bytes = encoder.encode(list(dict.fromkeys(references))).vectors.nbytes
    shortest: dict[tuple[str, int], Times] = {}
    records: list[Record] = []
    for repeat in range(repeats):
        cache.clear()
        records.clear()
        before: Tensor | None = None
        for epoch, texts in enumerate(candidates):
            # Alternating, as the first is often slower.
            order = (_CACHED, _UNCACHED) if (repeat + epoch) % 2 else (_UNCACHED, _CACHED)
            runs = {name: _validate(metrics[name], encoder, texts, references) for name in order}
            for name, run in runs.items():
                shortest[name, epoch] = run.times.shorter(shortest.get((name, epoch)))
            scores = runs[_CACHED].scores
            same = epoch > 0 and list(texts) == list(candidates[epoch - 1])
            records.append(
                {
                    "epoch": epoch + 1,
                    "same_candidates": same,
                    "texts_cached": runs[_CACHED].counts.texts,
                    "texts_uncached": runs[_UNCACHED].counts.texts,
                    "tokens_cached": runs[_CACHED].counts.tokens,
                    "tokens_uncached": runs[_UNCACHED].counts.tokens,
                    **shortest[_CACHED, epoch].ratios(shortest[_UNCACHED, epoch]),
                    "cache_bytes": cache.num_bytes,
                    "vector_bytes": vector_bytes,
                    "difference": _distance(scores, runs[_UNCACHED].scores),
                    "change": _distance(scores, before) if same and before is not None else None,
                }
            )
            before = scores
    return records


def _validate(
    metric: BERTScore, encoder: CountingEncoder, candidates: Sequence[str], references: Sequence[str]
) -> _Validation:
    counts, start = encoder.counts, Times.now()
    for first in range(0, len(candidates), _BATCH_SIZE):
        batch = slice(first, first + _BATCH_SIZE)
        metric.update(candidates[batch], references[batch])
    scores = metric.compute()
    metric.reset()
    times = Times.now() - start
    return _Validation(encoder.counts - counts, times, stack([scores[name] for name in SCORES]))


def _distance(scores: Tensor, others: Tensor) -> float:
    return float((scores - others).abs().max())
