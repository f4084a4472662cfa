"""Peak memory of scoring many pairs, in addition to the loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bertscore_tm import BERTScore, FrozenEncoder
from examples.research.benchmarks.package import MODEL, load_bert_score, score_f1
from examples.research.benchmarks.processes import peak_growth, run_fresh
from examples.research.benchmarks.rounds import Figure
from examples.research.benchmarks.texts import Options, short_texts

_PAIRS = 100_000
# One encoder layer and few words per text, so that 100,000 pairs take minutes; the vectors keep their width.
_NUM_LAYERS = 1
_BATCH_SIZE = 32
_WARM_PAIRS = 64


def measure(options: Options) -> Iterator[Figure]:
    """Measure the peak of resident memory during scoring minus the memory after loading the model, once.

    Yields:
        The peaks at a tenth of the pairs (100,000) and at all pairs, and the growth per pair between the two; for
        bert-score, which keeps all vectors in memory, at a hundredth and a fiftieth of the pairs.
    """
    pairs = options.pairs or _PAIRS
    words = sorted({word for text in options.flat_texts() for word in text.split()})
    measure_peak = partial(run_fresh, peak_of_scoring, threads=options.threads)
    for scorer, parts in {"function": (10, 1), "metric": (10, 1), "bert-score": (100, 50)}.items():
        few, many = (pairs // part for part in parts)
        peaks = [measure_peak(scorer, count, words) for count in (few, many)]
        for count, peak in zip((few, many), peaks, strict=True):
            yield Figure(f"{scorer}: peak at {count:,} pairs", [peak / 1e6], "MB")
        growth = (peaks[1] - peaks[0]) / (many - few)
        yield Figure(f"{scorer}: growth per pair from {few:,} to {many:,} pairs", [growth / 1e3], "kB")


def peak_of_scoring(scorer: str, pairs: int, words: Sequence[str]) -> int:
    """Return the bytes by which this process grows while it scores random texts, after a first batch.

    The scorer is ``"function"``, ``"metric"`` (in batches of 32) or ``"bert-score"``.
    """
    score = _load_scorer(scorer)
    first, second, candidates, references = (
        short_texts(words, count, seed) for seed, count in enumerate((_WARM_PAIRS, _WARM_PAIRS, pairs, pairs))
    )
    score(first, second)
    return peak_growth(lambda: score(candidates, references))


def _load_scorer(name: str) -> Callable[[list[str], list[str]], object]:
    if name == "bert-score":
        return load_bert_score(_NUM_LAYERS)
    encoder = FrozenEncoder(MODEL, num_layers=_NUM_LAYERS, device="cpu")
    if name == "function":
        return lambda candidates, references: score_f1(candidates, references, encoder)
    metric = BERTScore(encoder, reduction="none", cache_bytes=0)

    def update(candidates: list[str], references: list[str]) -> object:
        for start in range(0, len(candidates), _BATCH_SIZE):
            metric.update(candidates[start : start + _BATCH_SIZE], references[start : start + _BATCH_SIZE])
        return metric.compute()

    return update
