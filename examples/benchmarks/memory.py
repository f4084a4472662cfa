"""Peak memory of scoring many pairs, in addition to the loaded model, and its growth with the number of pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from examples.benchmarks.package import load_encoder, make_metric, score_f1
from examples.benchmarks.peers import load_bert_score
from examples.benchmarks.processes import peak_growth, run_fresh
from examples.benchmarks.rounds import Figure
from examples.benchmarks.texts import Options, flat_texts, short_texts

LIMIT_MB = 300.0

_PAIRS = 100_000
# One encoder layer and few words per text, so that 100,000 pairs take minutes; the vectors keep their width.
_NUM_LAYERS = 1
_BATCH_SIZE = 32
_WARM_PAIRS = 64

Scoring = Callable[[list[str], list[str]], object]


def measure(options: Options) -> list[Figure]:
    """Measure the peak of resident memory during scoring minus the memory after loading the model.

    Each value comes from a separate process, after scoring one batch. Memory is measured once, not in rounds.
    ``bert-score`` scores a hundredth and a fiftieth of the pairs, since it keeps all vectors in memory.

    Args:
        options: settings; ``pairs`` is the larger number of pairs, 100,000 by default.

    Returns:
        For the function and the metric the peaks at a tenth of the pairs and at all pairs, and for these and bert-score
        the growth per pair.

    Raises:
        OSError: the system is not Linux.
        ValueError: there are fewer than two pairs.
    """
    pairs = _PAIRS if options.pairs is None else options.pairs
    if pairs < 2:
        raise ValueError(f"pairs must be at least 2, to compare fewer with more, got {pairs}")
    words = sorted({word for text in flat_texts(options.texts) for word in text.split()})
    figures = []
    for scorer in ("function", "metric", "bert-score"):
        few, many = max(pairs // 10, 1), pairs
        if scorer == "bert-score":
            few, many = max(pairs // 100, 1), max(pairs // 50, 2)
        peaks = [
            run_fresh(peak_of_scoring, scorer, count, options.model, options.threads, words) / 1e6
            for count in (few, many)
        ]
        if scorer != "bert-score":
            figures.append(Figure(f"{scorer}: peak at {few:,} pairs", peaks[:1], "MB"))
            figures.append(Figure(f"{scorer}: peak at {many:,} pairs", peaks[1:], "MB", LIMIT_MB, at_most=True))
        growth = (peaks[1] - peaks[0]) / (many - few) * 1e3
        figures.append(Figure(f"{scorer}: growth per pair from {few:,} to {many:,} pairs", [growth], "kB"))
    return figures


def peak_of_scoring(scorer: str, pairs: int, model: str, threads: int, words: Sequence[str]) -> int:
    """Score random texts in this process and return the growth of its memory to the peak.

    Args:
        scorer: ``"function"``, ``"metric"`` (in batches of 32) or ``"bert-score"``.
        pairs: number of pairs.
        model: name or folder of the encoder; its first layer is used.
        threads: number of torch threads.
        words: words of the texts.

    Returns:
        Bytes, minus the memory after loading the model and scoring a batch.

    Raises:
        ValueError: ``scorer`` is unknown.
    """
    torch.set_num_threads(threads)
    score = _scoring(scorer, model)
    score(*(short_texts(words, _WARM_PAIRS, seed) for seed in (0, 1)))
    candidates, references = (short_texts(words, pairs, seed) for seed in (2, 3))
    return peak_growth(lambda: score(candidates, references))


def _scoring(scorer: str, model: str) -> Scoring:
    if scorer == "bert-score":
        return load_bert_score(model, _NUM_LAYERS)
    encoder = load_encoder(model, _NUM_LAYERS)
    if scorer == "function":
        return lambda candidates, references: score_f1(candidates, references, encoder)
    if scorer != "metric":
        raise ValueError(f"scorer={scorer!r} is not one of 'function', 'metric', 'bert-score'")
    metric = make_metric(encoder)

    def update(candidates: list[str], references: list[str]) -> object:
        for start in range(0, len(candidates), _BATCH_SIZE):
            metric.update(candidates[start : start + _BATCH_SIZE], references[start : start + _BATCH_SIZE])
        return metric.compute()

    return update
