"""Comparison of the study's rules and arms: differences over seeds and texts, tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr, ttest_1samp

from bertscore_tm.statistics import holm, mean_interval
from examples.study.rules import BASELINE, BEST, LARGEST_F1, LAST, PATIENCES, SUBSETS, Choice, mean_loss
from examples.study.training import CROSS_ENTROPY, RISK, SHUFFLED, WALL_TIME

MEASURES = {"layer5": "F1 layer 5", "layer3": "layer 3", "layer6": "layer 6", "rougeL": "ROUGE-L", "bleu": "BLEU"}
_OTHERS = ("largest val ROUGE-L", "largest val BLEU", "largest mean rank", LAST, BEST)
_STEPS = "share of steps"

Runs = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""Stored runs by task, regime and seed."""

Array = npt.NDArray[np.float64]


def summarize_rules(
    runs: Runs, choices: Mapping[tuple[str, str, int], Mapping[str, Sequence[Choice]]]
) -> dict[str, Any]:
    """Return every rule's gain over the smallest validation loss, over all conditions and by condition, and tests.

    A seed's gain is its mean over the conditions, so that intervals over seeds allow for what conditions share.
    """
    conditions = list(dict.fromkeys(key[:2] for key in runs))
    seeds = sorted({key[2] for key in runs})
    reached = {key: [_means(one["test"]) for one in run["checkpoints"]] for key, run in runs.items()}

    def value(key: tuple[str, str, int], rule: str, measure: str) -> float:
        count = len(reached[key])
        found = choices[key][rule]
        if measure == _STEPS:
            return fmean((one.stop + 1) / count for one in found)
        return fmean(reached[key][one.checkpoint][measure] for one in found)

    gains: dict[str, Any] = {}
    for rule in next(iter(choices.values())):
        gains[rule] = {_STEPS: fmean(value(key, rule, _STEPS) for key in runs)}
        for measure in MEASURES:
            table = np.array(
                [
                    [value((*one, seed), rule, measure) - value((*one, seed), BASELINE, measure) for seed in seeds]
                    for one in conditions
                ]
            )
            by_condition = {" / ".join(one): interval(row) for one, row in zip(conditions, table, strict=True)}
            gains[rule][measure] = interval(table.mean(0)) | {
                "by_seed": table.mean(0).tolist(), "runs_above": int((table > 0).sum()), "runs": table.size, "by_condition": by_condition,
            }  # fmt: skip
    tests = []
    for minus, measure in product((BASELINE, LAST), ("layer3", "layer6", "rougeL", "bleu")):
        paired = np.array(gains[LARGEST_F1][measure]["by_seed"]) - np.array(gains[minus][measure]["by_seed"])
        tests.append({"minus": minus, "measure": measure, **interval(paired)})
    for one, adjusted in zip(tests, holm([one["p_value"] for one in tests]), strict=True):
        one["p_adjusted"] = adjusted
    return {
        "gains": gains,
        "tests": tests,
        "seeds_and_texts": {measure: _seeds_and_texts(runs, choices, measure) for measure in ("layer3", "layer6", "rougeL")},
        "correlations": _correlations(runs, reached),
        "cost": fmean(run["seconds"]["decoding and scoring"] / run["seconds"]["training"] for run in runs.values()),
        "curves": [
            {
                "condition": " / ".join(key[:2]), "seed": key[2],
                "steps": [one["step"] for one in run["checkpoints"]],
                "val_loss": [mean_loss(one) for one in run["checkpoints"]],
                "val_f1": [fmean(one["f1"]) for one in run["checkpoints"]],
                **{f"test_{measure}": [one[measure] for one in reached[key]] for measure in (*MEASURES, "length")},
                "chosen": {rule: found[0]._asdict() for rule, found in choices[key].items() if "texts" not in rule},
            }
            for key, run in runs.items()
        ],
    }  # fmt: skip


def summarize_arms(
    found: Mapping[tuple[str, int, int], Mapping[str, Any]], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return means of every arm and differences between arms, by number of steps; keys are arm, steps and seed."""
    tested, tests, means = ("layer5", "layer6"), [], []
    for steps in sorted({key[1] for key in found if key[1]}):
        seeds = sorted({key[2] for key in found if key[1] == steps})
        values = {
            (arm, measure): np.array([_means(found[arm, count, seed]["test"])[measure] for seed in seeds])
            for arm, count in (("start", 0), *product((CROSS_ENTROPY, RISK, SHUFFLED, WALL_TIME), [steps]))
            for measure in (*MEASURES, "length")
        }
        means += [
            {"arm": arm, "steps": steps, "measure": measure, "mean": row.mean()}
            for (arm, measure), row in values.items()
        ]
        pairs = [
            (RISK, CROSS_ENTROPY),
            (RISK, WALL_TIME),
            (RISK, SHUFFLED),
            (SHUFFLED, CROSS_ENTROPY),
            (WALL_TIME, CROSS_ENTROPY),
        ]
        for (arm, minus), measure in product(pairs, (*MEASURES, "length")):
            paired = values[arm, measure] - values[minus, measure]
            tests.append(
                {
                    "arm": arm,
                    "minus": minus,
                    "steps": steps,
                    "measure": measure,
                    "seeds": len(seeds),
                    **interval(paired),
                }
            )
    primary = [one for one in tests if one["arm"] == RISK and one["measure"] in tested]
    for one, adjusted in zip(primary, holm([one["p_value"] for one in primary]), strict=True):
        one["p_adjusted"] = adjusted
    return {"means": means, "differences": tests, "seconds_per_step": dict(seconds)}


def interval(differences: Array) -> dict[str, float]:
    """Return mean, 95% interval of Student's t and two-sided p-value of paired differences."""
    low, high = mean_interval(differences)
    p_value = float(ttest_1samp(differences, 0).pvalue) if np.ptp(differences) > 0 else 1.0
    return {"difference": float(differences.mean()), "low": float(low), "high": float(high), "p_value": p_value}


def _means(test: Mapping[str, Any]) -> dict[str, float]:
    return {measure: fmean(values) if isinstance(values, list) else values for measure, values in test.items()}


def _seeds_and_texts(runs: Runs, choices: Mapping[Any, Any], measure: str, resamples: int = 4000) -> list[float]:
    """Return the interval of the largest F1's gain when seeds and test texts are drawn anew, both with replacement.

    Seeds are the same in all conditions, texts in the conditions of a task.
    """
    seeds, tasks = sorted({key[2] for key in runs}), list(dict.fromkeys(key[0] for key in runs))

    def gain(key: tuple[str, str, int]) -> Array:
        chosen = (choices[key][rule][0].checkpoint for rule in (LARGEST_F1, BASELINE))
        ours, baseline = (np.array(runs[key]["checkpoints"][one]["test"][measure]) for one in chosen)
        return ours - baseline

    regimes = list(dict.fromkeys(key[1] for key in runs))
    gains = [np.array([np.mean([gain((task, one, seed)) for one in regimes], 0) for seed in seeds]) for task in tasks]
    draw = np.random.default_rng(0)
    weights = draw.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), resamples) / len(seeds)
    texts = [
        draw.multinomial(one.shape[1], np.full(one.shape[1], 1 / one.shape[1]), resamples) / one.shape[1]
        for one in gains
    ]
    means = np.mean(
        [np.einsum("rs,st,rt->r", weights, one, drawn, optimize=True) for one, drawn in zip(gains, texts, strict=True)],
        0,
    )
    return [float(one) for one in np.quantile(means, [0.025, 0.975])]


def _correlations(runs: Runs, reached: Mapping[Any, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean Spearman correlation of F1 and loss of validation texts with F1 of test texts, from the sixth on."""
    found: dict[str, list[float]] = {"val_f1": [], "val_loss": []}
    for key, run in runs.items():
        test = [one["layer5"] for one in reached[key][5:]]
        found["val_f1"].append(spearmanr([fmean(one["f1"]) for one in run["checkpoints"][5:]], test).statistic)
        found["val_loss"].append(spearmanr([mean_loss(one) for one in run["checkpoints"][5:]], test).statistic)
    return {name: float(np.nanmean(values)) for name, values in found.items()}


def tables(results: Mapping[str, Any]) -> list[str]:
    """Return the page's tables of ``results.json``, scores times 100."""
    shown = []
    if "rules" in results:
        gains = results["rules"]["gains"]
        names = [LARGEST_F1, *_OTHERS]
        names += [f"early stopping on {what}" for what in _stopping_names()]
        names += [f"early stopping on F1, patience {patience}, weights at the stop" for patience in (3, 5)]
        names += [f"F1 of {count} texts" for count in SUBSETS]
        rows = [["rule", *MEASURES.values(), "steps"]]
        rows += [[name, *(_cell(gains[name][one]) for one in MEASURES), f"{gains[name][_STEPS]:.0%}"] for name in names]
        conditions = [["largest val F1, by condition", *MEASURES.values()]]
        for one in gains[LARGEST_F1]["layer5"]["by_condition"]:
            conditions.append([one, *(_cell(gains[LARGEST_F1][measure]["by_condition"][one]) for measure in MEASURES)])
        shown += [_markdown(rows), _markdown(conditions), _markdown(_test_rows(results["rules"]["tests"]))]
    if "arms" in results:
        found = results["arms"]["differences"]
        rows = [["steps, seeds", "arm", "minus", *MEASURES.values(), "length"]]
        for steps, arm, minus in dict.fromkeys((one["steps"], one["arm"], one["minus"]) for one in found):
            cells = [one for one in found if (one["steps"], one["arm"], one["minus"]) == (steps, arm, minus)]
            rows.append([f"{steps}, {cells[0]['seeds']}", arm, minus, *map(_cell, cells)])
        shown.append(_markdown(rows))
    return shown


def _stopping_names() -> list[str]:
    kinds = [("val_loss", ""), ("F1", ""), ("F1", ", significance 0.05")]
    return [f"{what}, patience {patience}{level}" for what, level in kinds for patience in PATIENCES]


def _test_rows(tests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    head = ["largest val F1 minus", "measure", "difference", "p (Holm)"]
    return [head] + [[one["minus"], MEASURES[one["measure"]], _cell(one), f"{one['p_adjusted']:.3f}"] for one in tests]


def _cell(one: Mapping[str, float]) -> str:
    tested = f"; p {one['p_adjusted']:.3f}" if "p_adjusted" in one and "arm" in one else ""
    return f"{100 * one['difference']:+.2f} ({100 * one['low']:+.2f} to {100 * one['high']:+.2f}{tested})"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw one run's loss and score with the chosen checkpoints, and the gain of each rule with its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.1, 1])
    run = next(one for one in results["rules"]["curves"] if one["condition"] == "manual pages / all pairs")
    left.plot(run["steps"], run["val_loss"], color="tab:gray", label="validation loss")
    left.set(xlabel="training step", ylabel="validation loss", title="One run: manual pages, all pairs")
    scores = left.twinx()
    scores.plot(run["steps"], run["val_f1"], color="tab:blue", label="validation F1, layer 5")
    scores.plot(run["steps"], run["test_layer5"], color="tab:blue", linestyle=":", label="test F1, layer 5")
    for rule, mark in ((BASELINE, "v"), (LARGEST_F1, "^")):
        place = run["chosen"][rule]["checkpoint"]
        scores.plot(
            run["steps"][place], run["test_layer5"][place], mark, color="black", markersize=9, label=f"chosen: {rule}"
        )
    scores.set_ylabel("F1")
    handles = [*left.get_lines(), *scores.get_lines()]
    scores.legend(handles, [str(one.get_label()) for one in handles], fontsize="small", loc="best")
    names = [
        LARGEST_F1,
        *(f"early stopping on F1, patience {one}" for one in (1, 2, 3, 5)),
        "largest val ROUGE-L",
        "largest val BLEU",
        "largest mean rank",
        LAST,
        BEST,
    ]
    for offset, (measure, color) in enumerate((("layer3", "tab:orange"), ("layer6", "tab:blue"))):
        found = [results["rules"]["gains"][name][measure] for name in names]
        centers = [100 * one["difference"] for one in found]
        spread = [[100 * abs(one[end] - one["difference"]) for one in found] for end in ("low", "high")]
        heights = [-i - 0.25 * offset for i in range(len(names))]
        right.errorbar(centers, heights, xerr=spread, fmt="o", color=color, label=f"F1, {MEASURES[measure]} (held out)")
    right.axvline(0, color="tab:gray", linewidth=0.8)
    right.set_yticks([-i - 0.125 for i in range(len(names))], names)
    right.set(
        xlabel="points more than with the smallest validation loss",
        title="Test texts, all runs, 95% intervals over seeds",
    )
    right.legend(fontsize="small")
    figure.savefig(path, dpi=110)
