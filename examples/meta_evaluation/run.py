"""Application of the protocols to a file of judgements, and tables of the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
_POOL = 100  # hybrid systems per choice, as in the paper


@dataclass(frozen=True)
class Sampling:
    """Sampling of hybrid systems."""

    hybrids: int = 10_000  # in a draw
    repeats: int = 10_000  # choices of the best of 100 hybrids in a draw
    draws: int = 10  # averaged over
    seed: int = 0  # of all draws, which are the same for all scores and ratings

    def __post_init__(self) -> None:
        # A pool of hybrids; a choice; and draws that have a spread.
        for name, least in {"hybrids": _POOL, "repeats": 1, "draws": 2}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


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
    if judged.kind == "ranked":
        return ["ranked"]
    names = ["segment"]
    if judged.systems is not None and len(set(judged.systems)) >= _FEWEST_SYSTEMS:
        names.append("system")
    if judged.documents is not None and max(Counter(judged.documents).values()) > 1:
        names.append("selection")
    return names


def evaluate(
    judged: Judged, scores: NDArray[np.float64], chosen: Sequence[str], sampling: Sampling | None = None
) -> list[Result]:
    """Compare scores, shape (settings, candidates), with judgements by the chosen protocols that apply to them."""
    results, count = [], len(judged.candidates)
    for protocol in (name for name in possible(judged) if name in chosen):
        if protocol == "ranked":
            figures = protocols.ranked_pairs(scores[:, : count // 2], scores[:, count // 2 :])
            results.append(Result(protocol, None, f"{count // 2} judgements", figures))
        elif protocol == "selection":
            results += _select(judged, scores, sampling or Sampling())
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


def records(
    file: str, settings: Sequence[Setting], ours: Result, theirs: Result | None
) -> Iterator[dict[str, str | int | float | bool | None]]:
    """Yield each figure of a result as a record with its file, protocol, rating and setting."""
    about = {"file": file, "protocol": ours.protocol, "rating": ours.rating}
    for name, values in ours.figures.items():
        for i, (setting, value) in enumerate(zip(settings, values, strict=True)):
            found = {"spread": ours.spreads[name][i]} if name in ours.spreads else {}
            if theirs is not None:
                found["reference"] = theirs.figures[name][i]
            yield {**about, "figure": name, **setting._asdict(), "value": value, **found}


def differences(ours: Result, theirs: Result) -> list[float]:
    """Return the difference of each figure from the reference package's; infinite if only one has a value."""
    pairs = [pair for name in ours.figures for pair in zip(ours.figures[name], theirs.figures[name], strict=True)]
    return [
        float("inf") if value is None or other is None else abs(value - other)
        for value, other in pairs
        if value is not None or other is not None
    ]


def _select(judged: Judged, scores: NDArray[np.float64], sampling: Sampling) -> list[Result]:
    random = np.random.default_rng(sampling.seed)
    drawn: dict[str, list[Figures]] = {name: [] for name in judged.ratings}
    for _ in range(sampling.draws):
        hybrids = protocols.draw_hybrids(judged.documents or [], sampling.hybrids, random)
        pools = protocols.draw_pools(sampling.hybrids, _POOL, sampling.repeats, random)
        for name, human in judged.ratings.items():
            drawn[name].append(protocols.model_selection(scores, human, hybrids, pools))
    size = (
        f"{sampling.draws} draws of {sampling.hybrids} hybrid systems, the best of {_POOL} chosen {sampling.repeats} "
        f"times each"
    )
    return [Result("selection", name, size, *protocols.average(draws)) for name, draws in drawn.items()]


def _format(name: str, result: Result) -> list[str]:
    """Return the values of a figure, with their spread over draws if there are several."""
    spreads = result.spreads.get(name, [None] * len(result.figures[name]))
    return [
        "-" if value is None else f"{value:.4f}" if spread is None else f"{value:.4f} ± {spread:.4f}"
        for value, spread in zip(result.figures[name], spreads, strict=True)
    ]
