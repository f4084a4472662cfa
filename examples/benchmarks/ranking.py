"""Ranking candidates by consensus, compared with bert-score and mbrs on all pairs."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bertscore_tm import FrozenEncoder, rank_candidates
from bertscore_tm.encoder.precision import has_native_bfloat16
from examples.benchmarks.expected_embedding import peak_growth
from examples.benchmarks.options import Options, flat_texts
from examples.benchmarks.processes import run_fresh
from examples.benchmarks.rounds import Figure, in_turn, ratios

__all__ = ["make_items", "measure", "peak_of_ranking"]

_NUMBERS_OF_CANDIDATES = (16, 64)
_ITEMS = 4
# For the peak memory: the smaller number fills one step.
_NUMBERS_OF_ITEMS = (80, 320)
_MEGABYTE = 1e6


def measure(options: Options) -> list[Figure]:
    """Rank the candidates of a few items in turn with the peers, and measure the peak memory of few and many items.

    Args:
        options: texts, encoder, rounds and threads.

    Returns:
        For 16 and 64 candidates per item the speed-up over bert-score on all n x n pairs, and over the BERTScore
        metric of mbrs where that is installed, and the largest difference of a score; the peak memory for 80 and for
        320 items.
    """
    torch.set_num_threads(options.threads)
    dtypes = ["float32", *(["bfloat16"] if has_native_bfloat16(torch.device("cpu")) else [])]
    encoders = {dtype: FrozenEncoder(options.model, num_layers=options.num_layers, dtype=dtype) for dtype in dtypes}
    peers = _peers(options)
    texts = list(dict.fromkeys(flat_texts(options.texts)))
    figures = []
    for number in _NUMBERS_OF_CANDIDATES:
        items = make_items(texts, _ITEMS, number)
        rankers = {dtype: partial(_ours, items, encoder) for dtype, encoder in encoders.items()}
        rankers |= {name: partial(_theirs, items, f1_of_pairs) for name, f1_of_pairs in peers.items()}
        found = {name: rank() for name, rank in rankers.items()}
        seconds = in_turn(rankers, options.rounds)
        for dtype in dtypes:
            for peer in peers:
                name = f"{number} candidates, {dtype}"
                faster = ratios(seconds[peer], seconds[dtype])
                deviation = float((found[dtype] - found[peer]).abs().max())
                figures.append(Figure(f"{name}: faster than {peer}", faster, "times", 3.0))
                figures.append(Figure(f"{name}: largest difference from {peer}", [deviation], ""))
    for count in _NUMBERS_OF_ITEMS:
        peak = run_fresh(peak_of_ranking, count, options.model, options.threads, texts)
        figures.append(Figure(f"peak memory of {count} items of 16 candidates", [peak / _MEGABYTE], "MB"))
    return figures


def make_items(texts: list[str], count: int, num_candidates: int) -> list[list[str]]:
    """Return items whose candidates differ, all of them.

    Args:
        texts: texts to vary.
        count: number of items.
        num_candidates: candidates per item.

    Returns:
        The candidates of each item: a text that starts at another word each time, with its number.

    Example:
        >>> make_items(["a cat sat"], 1, 3)
        [['a cat sat 0', 'cat sat a 1', 'sat a cat 2']]
    """
    items = []
    for item in range(count):
        words = texts[item % len(texts)].split()
        turns = [i % len(words) for i in range(num_candidates)]
        items.append(
            [" ".join([*words[turn:], *words[:turn], str(item * num_candidates + i)]) for i, turn in enumerate(turns)]
        )
    return items


def peak_of_ranking(count: int, model: str, threads: int, texts: list[str]) -> int:
    """Rank items by the first layer in this process and return the growth of its memory to the peak.

    Args:
        count: number of items of 16 candidates.
        model: name or folder of the encoder.
        threads: number of torch threads.
        texts: texts to vary.

    Returns:
        Bytes, minus the memory after loading the model and ranking an item.
    """
    torch.set_num_threads(threads)
    encoder = FrozenEncoder(model, num_layers=1)
    items = make_items(texts, count + 1, _NUMBERS_OF_CANDIDATES[0])
    rank_candidates(items[count:], encoder=encoder, device="cpu")
    gc.collect()
    return peak_growth(lambda: rank_candidates(items[:count], encoder=encoder, device="cpu"))


def _ours(items: list[list[str]], encoder: FrozenEncoder) -> Tensor:
    return torch.stack(rank_candidates(items, encoder=encoder, device="cpu").scores)


def _theirs(items: list[list[str]], f1_of_pairs: Callable[[list[str]], Tensor]) -> Tensor:
    """Return the mean F1 of each candidate with the others, item by item as in a loop over inputs."""
    scores = []
    for candidates in items:
        f1 = f1_of_pairs(candidates)
        scores.append((f1.sum(1) - f1.diagonal()) / (len(candidates) - 1))
    return torch.stack(scores)


def _peers(options: Options) -> dict[str, Callable[[list[str]], Tensor]]:
    """Return the peers that are installed: functions from n candidates to the F1 of all pairs, shape (n, n)."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    peers = {"bert-score": _bert_score(options)}
    if importlib.util.find_spec("mbrs") is not None:
        peers["mbrs"] = _mbrs(options)
    return peers


def _bert_score(options: Options) -> Callable[[list[str]], Tensor]:
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=options.model, num_layers=options.num_layers, device="cpu")

    def f1_of_pairs(candidates: list[str]) -> Tensor:
        n = len(candidates)
        f1: Tensor = scorer.score([one for one in candidates for _ in range(n)], candidates * n)[2]
        return f1.view(n, n)

    return f1_of_pairs


def _mbrs(options: Options) -> Callable[[list[str]], Tensor]:
    from mbrs.metrics import MetricBERTScore

    config = MetricBERTScore.Config(model_type=options.model, num_layers=options.num_layers, cpu=True)
    metric = MetricBERTScore(config)

    def f1_of_pairs(candidates: list[str]) -> Tensor:
        f1: Tensor = metric.pairwise_scores(candidates, candidates)
        return f1

    return f1_of_pairs
