"""How much memory scoring many pairs needs on top of the loaded model, and whether it grows with their number."""

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
# One layer of the encoder and few words per text: vectors are as wide as ever, and 100,000 pairs take minutes.
_NUM_LAYERS = 1
_WORDS_PER_TEXT = (3, 6)
_BATCH_SIZE = 32
_WARM_PAIRS = 64
_MEGABYTE = 1e6

Scoring = Callable[[list[str], list[str]], object]


def measure(options: Options) -> list[Figure]:
    """Measure the peak of resident memory while pairs are scored, beyond what it was when the model was loaded.

    Each value is from a process of its own, which has scored a batch before. Memory is measured once, not in rounds.
    The peer gets a hundredth and a fiftieth of our pairs, as it keeps the vectors of all of them.

    Args:
        options: settings; ``pairs`` is the larger number of ours, 100,000 by default.

    Returns:
        For the function and the metric the peaks at a tenth of the pairs and at all of them, the ratio of the two, and
        what each further pair adds; the last for ``bert-score`` too.

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
    for way in ("function", "metric"):
        few, many = (
            run_fresh(peak_of_scoring, way, count, options.model, options.threads, words) for count in (fewer, pairs)
        )
        figures += [
            Figure(f"{way}: peak at {fewer:,} pairs", [few / _MEGABYTE], "MB"),
            Figure(f"{way}: peak at {pairs:,} pairs", [many / _MEGABYTE], "MB", LIMIT_MB, at_most=True),
            Figure(f"{way}: peak at {pairs:,} pairs by that at {fewer:,}", [many / few], "times"),
            _per_pair(way, few, many, fewer, pairs),
        ]
    sizes = max(pairs // 100, 1), max(pairs // 50, 2)
    few, many = (
        run_fresh(peak_of_scoring, "bert-score", count, options.model, options.threads, words) for count in sizes
    )
    return [*figures, _per_pair("bert-score", few, many, *sizes)]


def peak_of_scoring(way: str, pairs: int, model: str, threads: int, words: Sequence[str]) -> int:
    """Score made-up pairs in this process and return the peak of its memory.

    Args:
        way: ``"function"``, ``"metric"`` (in batches of 32) or ``"bert-score"``.
        pairs: how many pairs.
        model: name or folder of the encoder, of which the first layer is used.
        threads: torch threads.
        words: what texts are made of.

    Returns:
        Bytes, less what there was after loading the model and scoring a batch.

    Raises:
        ValueError: there is no such way.
    """
    torch.set_num_threads(threads)
    score = _scoring(way, model)
    warm = [short_texts(words, _WARM_PAIRS, seed) for seed in (0, 1)]
    score(*warm)
    candidates, references = (short_texts(words, pairs, seed) for seed in (2, 3))
    return peak_growth(lambda: score(candidates, references))


def short_texts(words: Sequence[str], count: int, seed: int) -> list[str]:
    """Make distinct texts of 3 to 6 words.

    Args:
        words: to choose from.
        count: how many texts.
        seed: of the choice.

    Returns:
        The texts, which end in their numbers.

    Example:
        >>> short_texts(["a", "cat", "sat"], 2, seed=0)
        ['sat cat a cat cat 0', 'sat cat sat a 1']
    """
    chooser = random.Random(seed)
    return [" ".join([*chooser.choices(words, k=chooser.randint(*_WORDS_PER_TEXT) - 1), str(i)]) for i in range(count)]


def _scoring(way: str, model: str) -> Scoring:
    if way == "bert-score":
        from bert_score import BERTScorer

        transformers.utils.logging.disable_progress_bar()
        scorer = BERTScorer(model, num_layers=_NUM_LAYERS, device="cpu")
        return lambda candidates, references: scorer.score(candidates, references)
    encoder = FrozenEncoder(model, num_layers=_NUM_LAYERS)
    if way == "function":
        return lambda candidates, references: bert_score(candidates, references, encoder, device="cpu")
    if way != "metric":
        raise ValueError(f"way={way!r} is not one of 'function', 'metric', 'bert-score'")
    # References that do not come again are not worth keeping.
    metric = BERTScore(encoder, cache_bytes=0)

    def update(candidates: list[str], references: list[str]) -> object:
        for start in range(0, len(candidates), _BATCH_SIZE):
            metric.update(candidates[start : start + _BATCH_SIZE], references[start : start + _BATCH_SIZE])
        return metric.compute()

    return update


def _per_pair(way: str, few: int, many: int, fewer: int, more: int) -> Figure:
    what = f"{way}: growth per pair from {fewer:,} to {more:,} pairs"
    return Figure(what, [(many - few) / (more - fewer) / 1e3], "kB")
