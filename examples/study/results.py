"""Comparison of the study's arms: means, differences over seeds and texts, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

from bertscore_tm.statistics import holm

__all__ = ["BASELINE", "bootstrap_seeds_and_texts", "compare", "spreads", "tables"]

BASELINE = "cross-entropy"
"""The arm that the others are compared with."""

TESTED = ("layer6_f1", "rougeL")
"""Measures whose differences are tested; those of all others are reported with their intervals only."""

_TITLES = {"rougeL": "ROUGE-L", "repetition": "repeated"}

Runs = Mapping[tuple[str, int, int], Mapping[str, Sequence[float]]]
"""Values of each text by measure, by arm, checkpoint and seed."""


def spreads(runs: Runs) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return mean and sample standard deviation over runs of every measure, and of the length ratio, by arm."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for arm in dict.fromkeys(arm for arm, _, _ in runs):
        means = [
            {key: fmean(values) for key, values in run.items()} for (name, _, _), run in runs.items() if name == arm
        ]
        means = [one | {"length_ratio": one["words"] / one["reference_words"]} for one in means]
        columns = {key: [one[key] for one in means] for key in means[0]}
        found[arm] = {
            key: {"mean": fmean(column), "deviation": stdev(column) if len(column) > 1 else None}
            for key, column in columns.items()
        }
    return found


def compare(runs: Runs, measures: Sequence[str]) -> list[dict[str, Any]]:
    """Compare every arm with the baseline, and adjust the p-values of the tested measures together (Holm).

    All arms need the same seeds for every checkpoint. ``low`` and ``high`` are the ends of the 95% interval.
    """
    arms = list(dict.fromkeys(arm for arm, _, _ in runs))
    checkpoints, seeds = (sorted({key[place] for key in runs}) for place in (1, 2))
    compared = []
    for measure in measures:
        values = {arm: np.array([[runs[arm, i, j][measure] for j in seeds] for i in checkpoints]) for arm in arms}
        for arm in (arm for arm in arms if arm != BASELINE):
            differences = values[arm] - values[BASELINE]
            low, high, p_value = bootstrap_seeds_and_texts(differences)
            compared.append(
                {
                    "arm": arm,
                    "minus": BASELINE,
                    "measure": measure,
                    "difference": float(differences.mean()),
                    "low": low,
                    "high": high,
                    "p_value": p_value,
                    "p_adjusted": None,
                    "by_checkpoint": differences.mean((1, 2)).tolist(),
                    "by_seed": differences.mean(2).tolist(),
                }
            )
    tested = [one for one in compared if one["measure"] in TESTED]
    for one, adjusted in zip(tested, holm([one["p_value"] for one in tested]), strict=True):
        one["p_adjusted"] = adjusted
    return compared


def bootstrap_seeds_and_texts(
    differences: npt.NDArray[np.float64], *, num_resamples: int = 10_000, seed: int = 0
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
    low, high = np.quantile(means, [0.025, 0.975])
    tail = min((means <= 0).sum(), (means >= 0).sum())
    return float(low), float(high), min(1.0, 2 * (int(tail) + 1) / (num_resamples + 1))


def tables(results: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the page's tables of ``results.json``: validation curves, means and differences, scores times 100."""
    compared = results["comparisons"]
    measures = list(dict.fromkeys(one["measure"] for one in compared))
    titles = [_title(measure) for measure in measures]

    curves = [["checkpoint", "cross-entropy", "F1, layer 6", "kept"]]
    for number, one in enumerate(results["checkpoints"]):
        losses = " ".join(f"{epoch['cross_entropy']:.2f}" for epoch in one["curve"])
        scores = " ".join(f"{100 * epoch['f1']:.1f}" for epoch in one["curve"])
        curves.append([str(number), losses, scores, str(one["kept_epoch"])])

    seconds = {arm: steps * results["seconds_per_step"][arm] for arm, steps in results["steps"].items()}
    means = [["arm", *titles, "length", "time"]]
    for arm, found in results["arms"].items():
        cells = [_spread(found[measure], 100) for measure in measures]
        time = f"{seconds[arm] / seconds[BASELINE]:.1f}" if arm in seconds else ""
        means.append([arm, *cells, _spread(found["length_ratio"], 1), time])

    differences = [["arm", "minus", *titles]]
    for arm, minus in dict.fromkeys((one["arm"], one["minus"]) for one in compared):
        cells = [_difference(one) for one in compared if (one["arm"], one["minus"]) == (arm, minus)]
        differences.append([arm, minus, *cells])
    return _markdown(curves), _markdown(means), _markdown(differences)


def _title(measure: str) -> str:
    shown = _TITLES.get(measure, measure.replace("layer", "F1, layer ").removesuffix("_f1"))
    return f"**{shown}**" if measure in TESTED else shown


def _spread(spread: Mapping[str, float | None], scale: float) -> str:
    mean, deviation = spread["mean"], spread["deviation"]
    return f"{scale * (mean or 0):.2f}" + ("" if deviation is None else f" ± {scale * deviation:.2f}")


def _difference(one: Mapping[str, Any]) -> str:
    tested = "" if one["p_adjusted"] is None else f"; p {one['p_adjusted']:.3f}"
    return f"{100 * one['difference']:+.2f} ({100 * one['low']:+.2f} to {100 * one['high']:+.2f}{tested})"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])
