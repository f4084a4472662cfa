"""Comparison of the arms: means, and differences with intervals over seeds and texts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from bertscore_tm.statistics import holm
from examples.study.arms import COMPARISONS, TESTED

__all__ = ["Comparison", "Spread", "adjust", "bootstrap_seeds_and_texts", "compare", "spreads"]

_RESAMPLES = 10_000
_CONFIDENCE = 0.95

Runs = Mapping[tuple[str, int, int], Mapping[str, Any]]
"""The runs by arm, checkpoint and seed."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a figure over runs.

    Args:
        mean: mean over the runs.
        deviation: sample standard deviation over the runs; ``None`` for one run.
    """

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Comparison:
    """Difference between two arms in one measure, on the same texts with the same checkpoints and seeds.

    Args:
        arm: the arm.
        minus: the arm it is compared with.
        measure: the measure.
        difference: the mean difference.
        low: lower end of its 95% interval.
        high: upper end.
        p_value: two-sided p-value.
        p_adjusted: the p-value adjusted for all tested comparisons (Holm); ``None``: not tested.
        by_checkpoint: difference of each checkpoint.
        by_seed: differences of the seeds of each checkpoint.
    """

    arm: str
    minus: str
    measure: str
    difference: float
    low: float
    high: float
    p_value: float
    p_adjusted: float | None
    by_checkpoint: list[float]
    by_seed: list[list[float]]


def spreads(runs: Runs) -> dict[str, dict[str, Spread]]:
    """Return mean and deviation over runs of every measure of the arms.

    Args:
        runs: the runs.

    Returns:
        By arm and measure: the spread of the means over texts, and of ``length_ratio``.
    """
    found: dict[str, dict[str, Spread]] = {}
    for arm in dict.fromkeys(arm for arm, _, _ in runs):
        figures = [_figures(run["measured"]) for (name, _, _), run in runs.items() if name == arm]
        found[arm] = {
            key: Spread(fmean(one[key] for one in figures), _deviation([one[key] for one in figures]))
            for key in figures[0]
        }
    return found


def compare(runs: Runs, measures: Sequence[str]) -> list[Comparison]:
    """Compare the arms as fixed in ``COMPARISONS``, and adjust the p-values of the ``TESTED`` measures together.

    Args:
        runs: the runs of all arms, with the same seeds for every checkpoint.
        measures: names of the measures.

    Returns:
        The comparisons, by measure.
    """
    checkpoints = sorted({number for _, number, _ in runs})
    seeds = sorted({seed for _, _, seed in runs})
    compared = []
    for measure in measures:
        values = {
            arm: np.array([[runs[arm, number, seed]["measured"][measure] for seed in seeds] for number in checkpoints])
            for arm in dict.fromkeys(arm for arm, _, _ in runs)
        }
        for arm, minus in COMPARISONS:
            differences = values[arm] - values[minus]
            low, high, p_value = bootstrap_seeds_and_texts(differences)
            compared.append(
                Comparison(
                    arm,
                    minus,
                    measure,
                    float(differences.mean()),
                    low,
                    high,
                    p_value,
                    None,
                    differences.mean((1, 2)).tolist(),
                    differences.mean(2).tolist(),
                )
            )
    return adjust(compared)


def adjust(compared: Sequence[Comparison]) -> list[Comparison]:
    """Adjust the p-values of the ``TESTED`` measures for their number (Holm).

    Args:
        compared: the comparisons.

    Returns:
        The comparisons with adjusted p-values.
    """
    tested = [i for i, one in enumerate(compared) if one.measure in TESTED]
    adjusted = dict(zip(tested, holm([compared[i].p_value for i in tested]), strict=True))
    return [replace(one, p_adjusted=adjusted.get(i)) for i, one in enumerate(compared)]


def bootstrap_seeds_and_texts(
    differences: npt.NDArray[np.float64], *, num_resamples: int = _RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """Return the interval and the p-value of a mean difference, by resampling seeds and texts together.

    Each resample draws the seeds of each checkpoint and, independently, the texts, both with replacement, and takes the
    mean of all drawn pairs of a seed and a text. The interval covers the choice of seeds and of texts, not that of the
    checkpoints. It is conservative, since noise of single pairs counts for the seeds, for the texts and for itself
    (Owen, Annals of Applied Statistics 2007).

    Args:
        differences: paired differences, shape (checkpoints, seeds, texts).
        num_resamples: number of resamples.
        seed: seed of the draws.

    Returns:
        Lower and upper end of the 95% interval (percentiles), and the two-sided p-value.
    """
    draw = np.random.default_rng(seed)
    checkpoints, seeds, texts = differences.shape
    weights = draw.multinomial(seeds, np.full(seeds, 1 / seeds), (num_resamples, checkpoints)) / (seeds * checkpoints)
    text_weights = draw.multinomial(texts, np.full(texts, 1 / texts), num_resamples) / texts
    means = np.einsum("rt,rt->r", np.einsum("rcs,cst->rt", weights, differences, optimize=True), text_weights)
    low, high = np.quantile(means, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    tail = min((means <= 0).sum(), (means >= 0).sum())
    return float(low), float(high), min(1.0, 2 * (int(tail) + 1) / (num_resamples + 1))


def _figures(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return means over texts and the length ratio."""
    means = {key: fmean(values) for key, values in measured.items()}
    return means | {"length_ratio": means["words"] / means["reference_words"]}


def _deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None
