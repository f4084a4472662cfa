"""Scoring calls, compared with the bert-score package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bertscore_tm import FrozenEncoder, rank_candidates
from bertscore_tm.losses import BERTScoreReward
from examples.research.benchmarks.package import load_bert_score, load_encoders, score_f1
from examples.research.benchmarks.rounds import Figure, in_turn, ratios
from examples.research.benchmarks.texts import Options, make_items

# Pairs of small calls, and calls per round, as one takes milliseconds.
_FEW, _CALLS = (1, 4, 10), 5
_PAIRS, _CANDIDATES = 600, 16

Scorers = dict[str, Callable[[], Tensor]]


def measure(options: Options) -> Iterator[Figure]:
    """Score pairs, rank the samples of two items and reward a group of completions, in turn with bert-score.

    Yields:
        For each call the figures of :func:`compare`, in float32; of many pairs in each precision that the processor
        computes natively.
    """
    torch.set_num_threads(options.threads)
    encoders, score_peer = load_encoders(), load_bert_score()
    encoder = encoders["float32"]
    # Pairs from all parts of the texts.
    count = options.pairs or _PAIRS
    chosen = options.texts[:: len(options.texts) // count][:count]
    candidates, references = [candidate for candidate, _ in chosen], [reference for _, reference in chosen]

    def scorers(count: int, **encoders: FrozenEncoder) -> Scorers:
        pairs = candidates[:count], references[:count]
        ours: Scorers = {dtype: partial(score_f1, *pairs, encoder) for dtype, encoder in encoders.items()}
        return ours | {"bert-score": partial(score_peer, *pairs)}

    for few in _FEW:
        yield from compare(f"{few} pairs", scorers(few, float32=encoder), _CALLS * options.rounds)
    yield from compare(f"{count} pairs", scorers(count, **encoders), options.rounds)
    items = make_items(list(dict.fromkeys(options.flat_texts())), 2, _CANDIDATES)
    samples, first = [text for item in items for text in item], [item[0] for item in items for _ in item]

    def rank() -> Tensor:
        return torch.cat(rank_candidates(items, [item[:1] for item in items], encoder=encoder).scores)

    rankers: Scorers = {"float32": rank, "bert-score": partial(score_peer, samples, first)}
    yield from compare(f"ranking of 2 x {_CANDIDATES}", rankers, options.rounds)
    completions, answers, reward = items[0], references[:1] * _CANDIDATES, BERTScoreReward(encoder)
    rewards: Scorers = {
        "float32": lambda: torch.tensor(reward(completions, answers)),
        "bert-score": partial(score_peer, completions, answers),
    }
    yield from compare(f"reward of {_CANDIDATES} completions", rewards, options.rounds)


def compare(name: str, scorers: Scorers, rounds: int) -> Iterator[Figure]:
    """Yield the speed-up over bert-score, in float32, and the largest difference of a score from its own."""
    scores = {scorer: score() for scorer, score in scorers.items()}
    seconds = in_turn(scorers, rounds)
    for dtype in (scorer for scorer in scorers if scorer != "bert-score"):
        faster = ratios(seconds["bert-score"], seconds[dtype])
        yield Figure(f"{name}: {dtype}, faster than bert-score", faster, "times")
        difference = float((scores[dtype] - scores["bert-score"]).abs().max())
        yield Figure(f"{name}: {dtype}, largest difference of a score", [difference])
