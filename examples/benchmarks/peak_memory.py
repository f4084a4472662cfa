"""Peak memory of scoring many pairs, in addition to the loaded model, and its growth with the number of pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
import transformers

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from examples.benchmarks.expected_embedding import peak_growth
from examples.benchmarks.options import Options, flat_texts
from examples.benchmarks.processes import run_fresh
from examples.benchmarks.rounds import Figure

__all__ = ["LIMIT_MB", "measure", "peak_of_scoring", "short_texts"]

LIMIT_MB = 300.0

_PAIRS = 100_000
# One encoder layer and few words per text, so that 100,000 pairs take minutes; the vectors keep their width.
_NUM_LAYERS = 1
_WORDS_PER_TEXT = (3, 6)
_BATCH_SIZE = 32
_WARM_PAIRS = 64
_MEGABYTE = 1e6

Scoring = Callable[[list[str], list[str]], object]


def measure(options: Options) -> list[Figure]:
    """Measure the peak of resident memory during scoring minus the memory after loading the model.

    Each value comes from a separate process, after scoring one batch. Memory is measured once, not in rounds.
    ``bert-score`` scores a hundredth and a fiftieth of the pairs, since it keeps all vectors in memory.

    Args:
        options: settings; ``pairs`` is the larger number of pairs, 100,000 by default.

    Returns:
        For the function and the metric: the peaks at a tenth of the pairs and at all pairs, their ratio, and the growth
        per pair; for ``bert-score``: the growth per pair.

    Raises:
        OSError: the system is not Linux.
        ValueError: there are fewer than two pairs.
    """
    pairs = _PAIRS if options.pairs is None else options.pairs
    if pairs < 2:
        raise ValueError(f"pairs must be at least 2, to compare fewer with more, got {pairs}")
    fewer = max(pairs // 10, 1)
    words = sorted({word for text in flat_texts(options.texts) for word in text.split()})
    figures: list[Figure] = []
    for scorer in ("function", "metric"):
        few, many = (
            run_fresh(peak_of_scoring, scorer, count, options.model, options.threads, words) for count in (fewer, pairs)
        )
        figures += [
            Figure(f"{scorer}: peak at {fewer:,} pairs", [few / _MEGABYTE], "MB"),
            Figure(f"{scorer}: peak at {pairs:,} pairs", [many / _MEGABYTE], "MB", LIMIT_MB, at_most=True),
            Figure(f"{scorer}: peak at {pairs:,} pairs by that at {fewer:,}", [many / few], "times"),
            _per_pair(scorer, few, many, fewer, pairs),
        ]
    sizes = max(pairs // 100, 1), max(pairs // 50, 2)
    few, many = (
        run_fresh(peak_of_scoring, "bert-score", count, options.model, options.threads, words) for count in sizes
    )
    return [*figures, _per_pair("bert-score", few, many, *sizes)]


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
    warm = [short_texts(words, _WARM_PAIRS, seed) for seed in (0, 1)]
    score(*warm)
    candidates, references = (short_texts(words, pairs, seed) for seed in (2, 3))
    return peak_growth(lambda: score(candidates, references))


def short_texts(words: Sequence[str], count: int, seed: int) -> list[str]:
    """Return distinct random texts of 3 to 6 words.

    Args:
        words: the words to choose from.
        count: number of texts.
        seed: random seed.

    Returns:
        The texts; the last word of each is its number.

    Example:
        >>> short_texts(["a", "cat", "sat"], 2, seed=0)
        ['sat cat a cat cat 0', 'sat cat sat a 1']
    """
    chooser = random.Random(seed)
    return [" ".join([*chooser.choices(words, k=chooser.randint(*_WORDS_PER_TEXT) - 1), str(i)]) for i in range(count)]


def _scoring(scorer: str, model: str) -> Scoring:
    if scorer == "bert-score":
        from bert_score import BERTScorer

        transformers.utils.logging.disable_progress_bar()
        peer = BERTScorer(model, num_layers=_NUM_LAYERS, device="cpu")
        return lambda candidates, references: peer.score(candidates, references)
    encoder = FrozenEncoder(model, num_layers=_NUM_LAYERS)
    if scorer == "function":
        return lambda candidates, references: bert_score(candidates, references, encoder, device="cpu")
    if scorer != "metric":
        raise ValueError(f"scorer={scorer!r} is not one of 'function', 'metric', 'bert-score'")
    # The references occur once, so a cache is useless.
    metric = BERTScore(encoder, cache_bytes=0)

    def update(candidates: list[str], references: list[str]) -> object:
        for start in range(0, len(candidates), _BATCH_SIZE):
            metric.update(candidates[start : start + _BATCH_SIZE], references[start : start + _BATCH_SIZE])
        return metric.compute()

    return update


def _per_pair(scorer: str, few: int, many: int, fewer: int, more: int) -> Figure:
    what = f"{scorer}: growth per pair from {fewer:,} to {more:,} pairs"
    return Figure(what, [(many - few) / (more - fewer) / 1e3], "kB")
