"""Tables of the study: means over seeds, and differences from cross-entropy with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from bertscore_tm.statistics import holm, paired_bootstrap, scipy_stats
from examples.benchmarks.tables import Record, table
from examples.study.arms import BASELINE
from examples.study.measures import ROUGE

__all__ = ["Comparison", "Spread", "compare", "differences_table", "means_table", "spreads"]

Runs = Mapping[tuple[str, int], Mapping[str, Any]]
"""The runs of a task by arm and seed."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a figure over seeds.

    Args:
        mean: mean over seeds.
        deviation: sample standard deviation over seeds; ``None`` for one seed.
    """

    mean: float
    deviation: float | None

    def shown(self, scale: float, places: int) -> str:
        """Return mean and deviation as text.

        Args:
            scale: factor of the figures.
            places: number of decimals.

        Returns:
            The text, such as ``"56.9 ± 0.8"``.
        """
        mean = f"{scale * self.mean:.{places}f}"
        return mean if self.deviation is None else f"{mean} ± {scale * self.deviation:.{places}f}"


@dataclass(frozen=True)
class Comparison:
    """Difference of an arm from the baseline in one measure, on the same held-out texts and seeds.

    Args:
        arm: the arm.
        measure: the measure.
        difference: the mean difference.
        low: lower end of its 95% interval, from the paired bootstrap over texts, on scores averaged over seeds.
        high: upper end of the interval.
        p_value: two-sided p-value of the bootstrap, adjusted for the number of arms (Holm).
        by_seed: difference of each seed.
        p_over_seeds: two-sided p-value of a paired t-test over seeds, not adjusted; ``None`` for one seed.
    """

    arm: str
    measure: str
    difference: float
    low: float
    high: float
    p_value: float
    by_seed: list[float]
    p_over_seeds: float | None


def spreads(runs: Runs) -> dict[str, dict[str, Spread]]:
    """Return mean and deviation over seeds of every measure of a task's arms.

    Args:
        runs: the runs.

    Returns:
        By arm and measure: the spread of the means over texts, and of ``length_ratio``.
    """
    found: dict[str, dict[str, Spread]] = {}
    for arm in dict.fromkeys(arm for arm, _ in runs):
        figures = [_figures(run["measured"]) for (name, _), run in runs.items() if name == arm]
        found[arm] = {
            key: Spread(fmean(one[key] for one in figures), _deviation([one[key] for one in figures]))
            for key in figures[0]
        }
    return found


def compare(runs: Runs, measure: str) -> list[Comparison]:
    """Compare every arm with the baseline.

    Args:
        runs: the runs of a task.
        measure: name of the measure.

    Returns:
        One comparison for each arm that has seeds in common with the baseline.
    """
    compared = []
    for arm in dict.fromkeys(arm for arm, _ in runs if arm != BASELINE):
        seeds = [seed for name, seed in runs if name == arm and (BASELINE, seed) in runs]
        if not seeds:
            continue
        plain, other = ([runs[name, seed]["measured"][measure] for seed in seeds] for name in (BASELINE, arm))
        result = paired_bootstrap(_over_seeds(plain), _over_seeds(other))
        by_seed = [fmean(b) - fmean(a) for a, b in zip(plain, other, strict=True)]
        compared.append(
            Comparison(
                arm, measure, result.difference, result.low, result.high, result.p_value, by_seed, _t_test(by_seed)
            )
        )
    adjusted = holm([one.p_value for one in compared])
    return [Comparison(**{**vars(one), "p_value": p}) for one, p in zip(compared, adjusted, strict=True)]


def means_table(found: Mapping[str, Mapping[str, Spread]], encoders: Sequence[str], steps: Mapping[str, float]) -> str:
    """Return a table of means and standard deviations over seeds.

    Args:
        found: the result of ``spreads``.
        encoders: names of the encoders, that of the losses first.
        steps: seconds of a training step by arm; arms may be missing.

    Returns:
        The table; scores are multiplied by 100.
    """
    rows: list[Record] = []
    for arm, measures in found.items():
        row: Record = {"arm": arm}
        for key, short in (("precision", "P"), ("recall", "R"), ("f1", "F1")):
            row[short] = measures[f"{encoders[0]}_{key}"].shown(100, 2)
        row |= {f"F1 {name}": measures[f"{name}_f1"].shown(100, 2) for name in encoders[1:]}
        row |= {key.replace("rouge", "R-"): measures[key].shown(100, 2) for key in ROUGE}
        row |= {"repeats": measures["repetition"].shown(100, 1), "length": measures["length_ratio"].shown(1, 2)}
        rows.append(row | {"s/step": f"{steps[arm]:.2f}" if arm in steps else None})
    return table(rows, dict.fromkeys(rows[0], ""))


def differences_table(comparisons: Mapping[str, Sequence[Comparison]]) -> str:
    """Return a table of differences from the baseline.

    Args:
        comparisons: the result of ``compare``, by measure.

    Returns:
        The table; differences are multiplied by 100.
    """
    arms = dict.fromkeys(one.arm for compared in comparisons.values() for one in compared)
    rows: list[Record] = [{"minus cross-entropy": arm} for arm in arms]
    for measure, compared in comparisons.items():
        for row, one in zip(rows, compared, strict=True):
            over_seeds = "" if one.p_over_seeds is None else f", {one.p_over_seeds:.2f}"
            row[measure] = (
                f"{100 * one.difference:+.2f} ({100 * one.low:+.2f} to {100 * one.high:+.2f}, p "
                f"{one.p_value:.3f}{over_seeds})"
            )
    return table(rows, dict.fromkeys(rows[0], "")) if rows else ""


def _figures(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return means over texts and the length ratio."""
    means = {key: fmean(values) for key, values in measured.items()}
    return means | {"length_ratio": means["words"] / means["reference_words"]}


def _deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _t_test(differences: Sequence[float]) -> float | None:
    """Return the p-value of a t-test of the differences against 0; 1 if all are 0, ``None`` for one difference."""
    if len(differences) < 2:
        return None
    return float(scipy_stats().ttest_1samp(differences, 0).pvalue) if any(differences) else 1.0


def _over_seeds(per_seed: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over seeds of every text."""
    return [fmean(values) for values in zip(*per_seed, strict=True)]
