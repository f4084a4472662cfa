"""Application of the protocols to a file of judgements, and tables of the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.meta_evaluation import protocols
from examples.meta_evaluation.protocols import Figures
from examples.meta_evaluation.readers import Judged

PROTOCOLS = ("ranked", "segment", "system", "selection")
# Figures that differ by less agree to four decimals.
TOLERANCE = 5e-5
_FEWEST_SYSTEMS = 5  # for a correlation
# Hybrid systems in a draw, choices of the best of a pool of them, as in the paper, and draws that are averaged.
HYBRIDS, POOL, REPEATS, DRAWS = 10_000, 100, 10_000, 10


class Setting(NamedTuple):
    """Settings of a score: the encoder layer, and whether tokens are weighted by idf."""

    layer: int
    idf: bool


@dataclass(frozen=True)
class Result:
    """Figures of one protocol."""

    protocol: str  # one of PROTOCOLS
    rating: str | None  # name of the human rating; None for a file without ratings
    size: str  # number and kind of the compared items
    figures: Figures  # by name, one value per setting; means over draws where there are several
    spreads: Figures = field(default_factory=dict)  # standard deviations over the draws; empty without draws


def possible(judged: Judged) -> list[str]:
    """Return the protocols that apply to a file."""
    if not judged.ratings:
        return ["ranked"]
    names = ["segment"]
    if judged.systems is not None and len(set(judged.systems)) >= _FEWEST_SYSTEMS:
        names.append("system")
    if judged.documents is not None and max(Counter(judged.documents).values()) > 1:
        names.append("selection")
    return names


def evaluate(judged: Judged, scores: NDArray[np.float64], chosen: Sequence[str]) -> list[Result]:
    """Compare scores, shape (settings, candidates), with judgements by the chosen protocols that apply to them."""
    results, count = [], len(judged.candidates)
    for protocol in (name for name in possible(judged) if name in chosen):
        if protocol == "ranked":
            figures = protocols.ranked_pairs(scores[:, : count // 2], scores[:, count // 2 :])
            results.append(Result(protocol, None, f"{count // 2} judgements", figures))
        elif protocol == "selection":
            results += _select(judged, scores)
        else:
            for name, human in judged.ratings.items():
                if protocol == "segment":
                    size, figures = f"{count} candidates", protocols.segment_level(scores, human)
                else:
                    systems = judged.systems or []
                    size, figures = f"{len({*systems})} systems", protocols.system_level(scores, human, systems)
                results.append(Result(protocol, name, size, figures))
    return results


def table(file: str, settings: Sequence[Setting], ours: Result, theirs: Result | None) -> str:
    """Return a result, with that of the reference package if given, as a Markdown table with one row per setting."""
    about = ", ".join(filter(None, (ours.protocol, ours.rating, ours.size)))
    names = ["layer", "idf"]
    columns = [[str(setting.layer) for setting in settings], ["yes" if setting.idf else "no" for setting in settings]]
    for name in ours.figures:
        names.append(name)
        columns.append(_format(name, ours))
        if theirs is not None:
            names.append(f"{name} (bert-score)")
            columns.append(_format(name, theirs))
    lines = [names, ["---"] * len(names), *zip(*columns, strict=True)]
    return "\n".join([f"### {file}: {about}", "", *("| " + " | ".join(line) + " |" for line in lines)])


def differences(ours: Result, theirs: Result) -> list[float]:
    """Return the difference of each figure from the reference package's; infinite if only one has a value."""
    pairs = [pair for name in ours.figures for pair in zip(ours.figures[name], theirs.figures[name], strict=True)]
    return [
        float("inf") if value is None or other is None else abs(value - other)
        for value, other in pairs
        if value is not None or other is not None
    ]


def _select(judged: Judged, scores: NDArray[np.float64]) -> list[Result]:
    # The same draws for all scores and ratings.
    random = np.random.default_rng(0)
    draws: dict[str, list[Figures]] = {name: [] for name in judged.ratings}
    for _ in range(DRAWS):
        hybrids = protocols.draw_hybrids(judged.documents or [], HYBRIDS, random)
        pools = protocols.draw_pools(HYBRIDS, POOL, REPEATS, random)
        for name, human in judged.ratings.items():
            draws[name].append(protocols.model_selection(scores, human, hybrids, pools))
    size = f"{DRAWS} draws of {HYBRIDS} hybrid systems, the best of {POOL} chosen {REPEATS} times each"
    averages = {name: protocols.average(figures) for name, figures in draws.items()}
    return [Result("selection", name, size, means, spreads) for name, (means, spreads) in averages.items()]


def _format(name: str, result: Result) -> list[str]:
    """Return the values of a figure, with their spread over draws if there are several."""
    spreads = result.spreads.get(name, [None] * len(result.figures[name]))
    return [
        "-" if value is None else f"{value:.4f}" if spread is None else f"{value:.4f} ± {spread:.4f}"
        for value, spread in zip(result.figures[name], spreads, strict=True)
    ]
