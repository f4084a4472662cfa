"""Application of the protocols to a file of judgements."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from examples.meta_evaluation import protocols
from examples.meta_evaluation.protocols import Figures
from examples.meta_evaluation.readers import Judged, Labelled, Ranked, Rated

PROTOCOLS = ("ranked", "segment", "system", "selection", "paraphrase")
_FEWEST_SYSTEMS = 5  # for a correlation
_POOL = 100  # hybrid systems per choice, as in the paper


@dataclass(frozen=True)
class Sampling:
    """Sampling of hybrid systems.

    Args:
        hybrids: number of hybrid systems in a draw.
        repeats: number of choices of the best of 100 hybrids in a draw.
        draws: number of draws of hybrids, over which figures are averaged.
        seed: seed of all draws, which are the same for all scores and ratings.

    Raises:
        ValueError: there are too few hybrids, repeats or draws.
    """

    hybrids: int = 10_000
    repeats: int = 10_000
    draws: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hybrids < _POOL:
            raise ValueError(f"hybrids must be at least {_POOL}, the size of a pool, got {self.hybrids}")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        if self.draws < 2:
            raise ValueError(f"draws must be at least 2, as figures come with their spread, got {self.draws}")


@dataclass(frozen=True)
class Result:
    """Figures of one protocol.

    Args:
        protocol: one of ``PROTOCOLS``.
        rating: name of the human rating; ``None`` for a file without ratings.
        size: number and kind of the compared items, as text.
        figures: values of each figure, one per setting, by name; means over draws where there are several.
        spreads: standard deviation of each figure over the draws; empty for protocols without draws.
    """

    protocol: str
    rating: str | None
    size: str
    figures: Figures
    spreads: Figures = field(default_factory=dict)


def possible(judged: Judged) -> list[str]:
    """Return the protocols that apply to a file.

    Args:
        judged: the judgements of the file.

    Returns:
        Names from ``PROTOCOLS``.
    """
    if isinstance(judged, Ranked):
        return ["ranked"]
    if isinstance(judged, Labelled):
        return ["paraphrase"]
    names = ["segment"]
    if judged.systems is not None and len(set(judged.systems)) >= _FEWEST_SYSTEMS:
        names.append("system")
    if judged.documents is not None and max(Counter(judged.documents).values()) > 1:
        names.append("selection")
    return names


def evaluate(
    judged: Judged, scores: NDArray[np.float64], chosen: list[str], sampling: Sampling | None = None
) -> list[Result]:
    """Compare scores with a file's judgements.

    Args:
        judged: the judgements of the file.
        scores: scores of ``judged.pairs()``, shape (settings, pairs).
        chosen: protocols to apply; those that do not apply to the file are skipped.
        sampling: sampling of hybrid systems.

    Returns:
        One result per protocol and rating.
    """
    names = [name for name in possible(judged) if name in chosen]
    if isinstance(judged, Ranked):
        count = len(judged.better)
        figures = protocols.ranked_pairs(scores[:, :count], scores[:, count:])
        return [Result(name, None, f"{count} judgements", figures) for name in names]
    if isinstance(judged, Labelled):
        size = f"{sum(judged.labels)} paraphrases and {len(judged.labels) - sum(judged.labels)} others"
        return [Result(name, None, size, protocols.paraphrase_auc(scores, judged.labels)) for name in names]
    apply = {"segment": _segment, "system": _system, "selection": _selection}
    return [result for name in names for result in apply[name](judged, scores, sampling or Sampling())]


def _segment(judged: Rated, scores: NDArray[np.float64], sampling: Sampling) -> list[Result]:
    size = f"{len(judged.candidates)} candidates"
    return [
        Result("segment", name, size, protocols.segment_level(scores, human)) for name, human in judged.ratings.items()
    ]


def _system(judged: Rated, scores: NDArray[np.float64], sampling: Sampling) -> list[Result]:
    assert judged.systems is not None
    size = f"{len(set(judged.systems))} systems"
    return [
        Result("system", name, size, protocols.system_level(scores, human, judged.systems))
        for name, human in judged.ratings.items()
    ]


def _selection(judged: Rated, scores: NDArray[np.float64], sampling: Sampling) -> list[Result]:
    assert judged.documents is not None
    random = np.random.default_rng(sampling.seed)
    drawn: dict[str, list[Figures]] = {name: [] for name in judged.ratings}
    for _ in range(sampling.draws):
        hybrids = protocols.draw_hybrids(judged.documents, sampling.hybrids, random)
        pools = protocols.draw_pools(sampling.hybrids, _POOL, sampling.repeats, random)
        for name, human in judged.ratings.items():
            drawn[name].append(protocols.model_selection(scores, human, hybrids, pools))
    size = (
        f"{sampling.draws} draws of {sampling.hybrids} hybrid systems, the best of {_POOL} chosen {sampling.repeats} "
        f"times each"
    )
    return [Result("selection", name, size, *protocols.average(draws)) for name, draws in drawn.items()]
