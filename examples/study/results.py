"""From runs to a table: means over seeds, and differences from cross-entropy with their intervals."""

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
    """A figure over seeds.

    Args:
        mean: the mean of the seeds' figures.
        deviation: their sample standard deviation; ``None`` for one seed.
    """

    mean: float
    deviation: float | None

    def shown(self, scale: float, places: int) -> str:
        """Return mean and deviation as text.

        Args:
            scale: what the figures are multiplied by.
            places: decimals.
        """
        mean = f"{scale * self.mean:.{places}f}"
        return mean if self.deviation is None else f"{mean} ± {scale * self.deviation:.{places}f}"


@dataclass(frozen=True)
class Comparison:
    """An arm less the baseline in one measure, on the same held-out texts and seeds.

    Args:
        arm: the arm.
        measure: the measure.
        difference: the mean difference.
        low: lower end of its 95% interval, by the paired bootstrap over texts, whose scores are means over seeds.
        high: upper end.
        p_value: two-sided, adjusted for the number of arms compared in this measure (Holm).
        by_seed: the difference of each seed.
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
    """Sum up the runs of a task.

    Args:
        runs: the runs.

    Returns:
        For every arm, its measures over seeds: the means over texts, and ``length_ratio``.
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
    """Show means and standard deviations over seeds.

    Args:
        found: what ``spreads`` returned.
        encoders: names of the encoders, the trained one first.
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
    """Show differences from the baseline.

    Args:
        comparisons: by measure, what ``compare`` returned.

    Returns:
        The table; differences are multiplied by 100.
    """
    arms = dict.fromkeys(one.arm for compared in comparisons.values() for one in compared)
    rows: list[Record] = [{"less cross-entropy": arm} for arm in arms]
    for measure, compared in comparisons.items():
        for row, one in zip(rows, compared, strict=True):
            over_seeds = "" if one.p_over_seeds is None else f", {one.p_over_seeds:.2f}"
            row[measure] = (
                f"{100 * one.difference:+.2f} ({100 * one.low:+.2f} to {100 * one.high:+.2f}, p "
                f"{one.p_value:.3f}{over_seeds})"
            )
    return table(rows, dict.fromkeys(rows[0], "")) if rows else ""


def _figures(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the means over texts, and the length ratio."""
    means = {key: fmean(values) for key, values in measured.items()}
    return means | {"length_ratio": means["words"] / means["reference_words"]}


def _deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _t_test(differences: Sequence[float]) -> float | None:
    """Tell how likely differences are that lie this far from 0, if their mean is 0; 1 where all are 0."""
    if len(differences) < 2:
        return None
    return float(scipy_stats().ttest_1samp(differences, 0).pvalue) if any(differences) else 1.0


def _over_seeds(per_seed: Sequence[Sequence[float]]) -> list[float]:
    """Return every text's mean over seeds."""
    return [fmean(values) for values in zip(*per_seed, strict=True)]
