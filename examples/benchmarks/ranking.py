"""Ranking samples by consensus, compared with bert-score on all pairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from examples.benchmarks.package import load_encoders, score_consensus
from examples.benchmarks.peers import load_bert_score
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.texts import Options, flat_texts, make_items

_ITEMS, _SAMPLES = 4, 64
_TARGETS = {"float32": 2.0, "bfloat16": 4.0}


def measure(options: Options) -> list[Figure]:
    """Rank the samples of a few items in turn with bert-score.

    Args:
        options: settings; ``pairs`` is the number of samples per item, 64 by default.

    Returns:
        For each precision that the processor computes natively the speed-up over bert-score on all n x n pairs, item by
        item, and the largest difference of a score.
    """
    torch.set_num_threads(options.threads)
    encoders = load_encoders(options.model, options.num_layers)
    peer = load_bert_score(options.model, options.num_layers)
    samples = options.pairs or _SAMPLES
    items = make_items(list(dict.fromkeys(flat_texts(options.texts))), _ITEMS, samples)
    rankers = {dtype: partial(score_consensus, items, encoder) for dtype, encoder in encoders.items()}
    rankers["bert-score"] = partial(rank_by_pairs, items, peer)
    found = {name: rank() for name, rank in rankers.items()}
    seconds = in_turn(rankers, options.rounds)
    figures = []
    for dtype in encoders:
        name = f"{_ITEMS} items of {samples} samples: {dtype}"
        faster = ratios(seconds["bert-score"], seconds[dtype])
        figures.append(Figure(f"{name}, faster than bert-score", faster, "times", _TARGETS[dtype]))
        difference = float((found[dtype] - found["bert-score"]).abs().max())
        limit = 1e-5 if dtype == "float32" else None
        figures.append(Figure(f"{name}, largest difference of a score", [difference], "", limit, at_most=True))
    return figures


def rank_by_pairs(items: list[list[str]], score: Callable[[list[str], list[str]], Tensor]) -> Tensor:
    """Return the mean F1 of each candidate with the others of its item, by scoring all pairs, item by item."""
    scores = []
    for candidates in items:
        n = len(candidates)
        f1 = score([one for one in candidates for _ in range(n)], candidates * n).view(n, n)
        scores.append((f1.sum(1) - f1.diagonal()) / (n - 1))
    return torch.stack(scores)
