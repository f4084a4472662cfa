"""Comparison of the study's rules and arms: differences over seeds and texts, tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from scipy.stats import spearmanr, ttest_1samp

from bertscore_tm.statistics import holm, mean_interval
from examples.study.rules import BASELINE, BEST, LARGEST_F1, LAST, SUBSETS, Choice, mean_loss
from examples.study.training import CROSS_ENTROPY, RISK, SHUFFLED, WALL_TIME

MEASURES = {"layer5": "F1 layer 5", "layer3": "layer 3", "layer6": "layer 6", "rougeL": "ROUGE-L", "bleu": "BLEU"}
OTHERS = ("largest val ROUGE-L", "largest val BLEU", "largest mean rank", LAST, BEST)

Key = tuple[str, str, int]
"""Task, regime and seed of a run."""

Array = npt.NDArray[np.float64]


def summarize_rules(runs: Mapping[Key, Any], choices: Mapping[Key, Mapping[str, Sequence[Choice]]]) -> dict[str, Any]:
    """Return every rule's gain over the smallest validation loss, with tests, correlations, costs and curves.

    A seed's gain is its mean over the conditions, so that intervals over seeds allow for what conditions share.
    """
    conditions, seeds = list(dict.fromkeys(key[:2] for key in runs)), sorted({key[2] for key in runs})
    reached = {key: [_means(one["test"]) for one in run["checkpoints"]] for key, run in runs.items()}

    def table(rule: str, measure: str) -> Array:
        """Return the values of the chosen checkpoints, shape (conditions, seeds)."""
        keys = [(*condition, seed) for condition, seed in product(conditions, seeds)]
        found = [fmean(reached[key][one.checkpoint][measure] for one in choices[key][rule]) for key in keys]
        return np.array(found).reshape(len(conditions), -1)

    gains: dict[str, Any] = {}
    for rule in next(iter(choices.values())):
        stops = [(one[rule][0].stop + 1) / len(reached[key]) for key, one in choices.items()]
        gains[rule] = {"share of steps": fmean(stops)}
        for measure in MEASURES:
            gain = table(rule, measure) - table(BASELINE, measure)
            by_condition = {" / ".join(one): interval(row) for one, row in zip(conditions, gain, strict=True)}
            gains[rule][measure] = interval(gain.mean(0)) | {"runs_above": int((gain > 0).sum())}
            gains[rule][measure] |= {"by_seed": gain.mean(0).tolist(), "by_condition": by_condition}
    tests = []
    for minus, measure in product((BASELINE, LAST), ("layer3", "layer6", "rougeL", "bleu")):
        paired = (table(LARGEST_F1, measure) - table(minus, measure)).mean(0)
        tests.append({"minus": minus, "measure": measure, **interval(paired)})
    _adjust(tests)
    curves = []
    for key, run in runs.items():
        curve = {"condition": " / ".join(key[:2]), "seed": key[2], "steps": [one["step"] for one in run["checkpoints"]]}
        curve |= {"val_loss": [mean_loss(one) for one in run["checkpoints"]]}
        curve |= {"val_f1": [fmean(one["f1"]) for one in run["checkpoints"]]}
        curve |= {f"test_{measure}": [one[measure] for one in reached[key]] for measure in (*MEASURES, "length")}
        curves.append(curve | {"chosen": {rule: choices[key][rule][0].checkpoint for rule in (BASELINE, LARGEST_F1)}})
    # From the sixth checkpoint on: all signals agree on the first ones.
    correlations = {
        name: float(np.nanmean([spearmanr(one[name][5:], one["test_layer5"][5:]).statistic for one in curves]))
        for name in ("val_f1", "val_loss")
    }
    cost = fmean(run["seconds"]["decoding and scoring"] / run["seconds"]["training"] for run in runs.values())
    both = {measure: _seeds_and_texts(runs, choices, measure) for measure in ("layer3", "layer6", "rougeL")}
    return {
        "gains": gains,
        "tests": tests,
        "seeds_and_texts": both,
        "correlations": correlations,
        "cost": cost,
        "curves": curves,
    }


def summarize_arms(found: Mapping[tuple[str, int, int], Any]) -> list[dict[str, Any]]:
    """Return the differences between arms by number of steps; keys are arm, steps and seed."""
    differences = []
    pairs = [(RISK, CROSS_ENTROPY), (RISK, WALL_TIME), (RISK, SHUFFLED), (SHUFFLED, CROSS_ENTROPY)]
    for steps, (arm, minus) in product(sorted({key[1] for key in found}), pairs):
        seeds = sorted({key[2] for key in found if key[1] == steps})
        arms = [[_means(found[one, steps, seed]["test"]) for seed in seeds] for one in (arm, minus)]
        for measure in (*MEASURES, "length"):
            ours, theirs = (np.array([one[measure] for one in row]) for row in arms)
            one = {"arm": arm, "minus": minus, "steps": steps, "seeds": len(seeds), "measure": measure}
            differences.append(one | {"mean": ours.mean(), **interval(ours - theirs)})
    _adjust([one for one in differences if one["arm"] == RISK and one["measure"] in ("layer5", "layer6")])
    return differences


def interval(differences: Array) -> dict[str, float]:
    """Return mean, 95% interval of Student's t and two-sided p-value of paired differences."""
    low, high = mean_interval(differences)
    p_value = float(ttest_1samp(differences, 0).pvalue) if np.ptp(differences) > 0 else 1.0
    return {"difference": float(differences.mean()), "low": float(low), "high": float(high), "p_value": p_value}


def _adjust(tests: Sequence[dict[str, Any]]) -> None:
    for one, adjusted in zip(tests, holm([one["p_value"] for one in tests]), strict=True):
        one["p_adjusted"] = adjusted


def _means(test: Mapping[str, Any]) -> dict[str, float]:
    return {measure: fmean(values) if isinstance(values, list) else values for measure, values in test.items()}


def _seeds_and_texts(runs: Mapping[Key, Any], choices: Mapping[Key, Any], measure: str) -> list[float]:
    """Return the interval of the largest F1's gain when seeds and test texts are drawn anew, 4,000 times.

    Seeds are the same in all conditions, texts in the conditions of a task.
    """
    gains: dict[str, dict[int, list[Array]]] = {}
    for key, run in runs.items():
        chosen = (choices[key][rule][0].checkpoint for rule in (LARGEST_F1, BASELINE))
        ours, baseline = (np.array(run["checkpoints"][one]["test"][measure]) for one in chosen)
        gains.setdefault(key[0], {}).setdefault(key[2], []).append(ours - baseline)
    tables = [np.array([np.mean(rows, 0) for rows in by_seed.values()]) for by_seed in gains.values()]
    draws = np.random.default_rng(0)
    seeds, *texts = (
        draws.multinomial(n, np.full(n, 1 / n), 4000) / n for n in (len(tables[0]), *(x.shape[1] for x in tables))
    )
    means = np.mean([((seeds @ one) * drawn).sum(1) for one, drawn in zip(tables, texts, strict=True)], 0)
    return [float(one) for one in np.quantile(means, [0.025, 0.975])]


def tables(results: Mapping[str, Any]) -> list[str]:
    """Return the page's tables of ``results.json``, scores times 100."""
    gains, tests = results["rules"]["gains"], results["rules"]["tests"]
    names = [LARGEST_F1, *OTHERS]
    names += [one for one in gains if one.startswith("early stopping") and "at the stop" not in one]
    names += [f"early stopping on F1, patience {one}, weights at the stop" for one in (3, 5)]
    names += [f"F1 of {count} texts" for count in SUBSETS]
    rules = [["rule", *MEASURES.values(), "steps"]]
    rules += [[one, *(_cell(gains[one][x]) for x in MEASURES), f"{gains[one]['share of steps']:.0%}"] for one in names]
    conditions = [[LARGEST_F1, *MEASURES.values()]]
    for one in gains[LARGEST_F1]["layer5"]["by_condition"]:
        conditions.append([one, *(_cell(gains[LARGEST_F1][measure]["by_condition"][one]) for measure in MEASURES)])
    tested = [[f"{LARGEST_F1} minus", "measure", "difference"]]
    tested += [[one["minus"], MEASURES[one["measure"]], _cell(one)] for one in tests]
    arms = [["steps (seeds)", "arm", "minus", *MEASURES.values(), "length"]]
    found = results["arms"]
    for steps, arm, minus in dict.fromkeys((one["steps"], one["arm"], one["minus"]) for one in found):
        row = [one for one in found if (one["steps"], one["arm"], one["minus"]) == (steps, arm, minus)]
        arms.append([f"{steps} ({row[0]['seeds']})", arm, minus, *map(_cell, row)])
    return [_markdown(table) for table in (rules, conditions, tested, arms)]


def _markdown(table: Sequence[Sequence[str]]) -> str:
    head, *rows = (f"| {' | '.join(row)} |" for row in table)
    return "\n".join([head, f"|{'---|' * len(table[0])}", *rows])


def _cell(one: Mapping[str, float]) -> str:
    tested = f"; p {one['p_adjusted']:.3f}" if "p_adjusted" in one else ""
    return f"{100 * one['difference']:+.2f} ({100 * one['low']:+.2f} to {100 * one['high']:+.2f}{tested})"


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw one run's loss and score with the chosen checkpoints, and the gain of each rule with its interval."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    run = next(one for one in results["rules"]["curves"] if one["condition"] == "manual pages / few pairs")
    left.set(xlabel="training step", title="One run: manual pages, few pairs")
    shown = ((left, "val_loss", BASELINE, "C1"), (left.twinx(), "val_f1", LARGEST_F1, "C0"))
    for axis, name, rule, color in shown:
        axis.plot(run["steps"], run[name], "o-", color=color)
        axis.axvline(run["steps"][run["chosen"][rule]], color=color, linestyle=":")
        axis.set_ylabel(f"{name}; dotted: {rule}", color=color)
    stopping = [f"early stopping on F1, patience {one}" for one in (1, 2, 3, 5)]
    names = [LARGEST_F1, *stopping, *OTHERS]
    for offset, (measure, color) in enumerate((("layer3", "C2"), ("layer6", "C3"))):
        found = [results["rules"]["gains"][name][measure] for name in names]
        spread = [[100 * abs(one[end] - one["difference"]) for one in found] for end in ("low", "high")]
        heights = [-i - 0.3 * offset for i in range(len(names))]
        centers = [100 * one["difference"] for one in found]
        right.errorbar(centers, heights, xerr=spread, fmt="o", color=color, label=f"F1, {MEASURES[measure]}")
    right.axvline(0, color="gray", linewidth=0.8)
    right.set_yticks([-i - 0.15 for i in range(len(names))], names)
    right.set(xlabel="points above the smallest val_loss, test texts", title="All runs, layers that choose nothing")
    right.legend(fontsize="small")
    figure.savefig(path, dpi=110)
