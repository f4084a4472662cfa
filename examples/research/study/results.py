"""Comparison of the study's rules and arms: values by run, and tables and a figure of their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr, ttest_1samp

from bertscore_tm.statistics import holm, mean_interval
from examples.research.study.rules import BASELINE, BEST, LARGEST_F1, LAST, PATIENCES, SUBSETS, Choice
from examples.research.study.training import CROSS_ENTROPY, EVERY, RISK, SHUFFLED, THIRD, WALL_TIME

MEASURES = {"layer5": "F1 layer 5", "layer3": "layer 3", "layer6": "layer 6", "rougeL": "ROUGE-L", "bleu": "BLEU"}
STOPPING = [f"early stopping on F1, patience {patience}" for patience in PATIENCES]
# Layers that do not reward samples.
HELD_OUT = ("layer5", "layer6")
RULES = [LARGEST_F1, "largest val ROUGE-L", "largest val BLEU", "largest mean rank", LAST, BEST]

Key = tuple[str, str, int]  # task, regime and seed of a run


def summarize_rules(runs: Mapping[Key, Any], choices: Mapping[Key, Mapping[str, Sequence[Choice]]]) -> dict[str, Any]:
    """Return the curves and choices of every run, the costs, and the gain when seeds and texts are drawn anew."""
    curves = []
    for key, run in runs.items():
        checkpoints = run["checkpoints"]
        table = pd.DataFrame([{**row, **_means(row["test"]), "val_f1": fmean(row["f1"])} for row in checkpoints])
        values = table[["step", "val_loss", "val_f1", *MEASURES]].to_dict("list")
        curves.append({"condition": " / ".join(key[:2]), "seed": key[2], **values, "choices": choices[key]})
    cost = fmean(run["seconds"]["decoding and scoring"] / run["seconds"]["training"] for run in runs.values())
    redrawn = {measure: _seeds_and_texts(runs, choices, measure) for measure in ("layer3", "layer6", "rougeL")}
    # From the sixth checkpoint on: all signals agree on the first ones.
    correlations = {
        name: float(np.nanmean([spearmanr(curve[name][5:], curve["layer5"][5:]).statistic for curve in curves]))
        for name in ("val_f1", "val_loss")
    }
    return {"curves": curves, "correlations": correlations, "cost": cost, "seeds_and_texts": redrawn}


def summarize_arms(arms: Mapping[tuple[str, str, int, int], Any]) -> list[dict[str, Any]]:
    """Return what every arm reaches; keys are task, arm, steps and seed."""
    keys = ("task", "arm", "steps", "seed")
    return [dict(zip(keys, key, strict=True)) | _means(reached["test"]) for key, reached in arms.items()]


def best_interval(equal_time: Sequence[Mapping[str, Any]]) -> str:
    """Return the arm with the risk that has the largest mean F1 at the layers that do not reward."""
    means = pd.DataFrame([row for row in equal_time if row["arm"] in EVERY]).groupby("arm")[[*HELD_OUT]].mean()
    return str(means.sum(axis=1).idxmax())


def _means(test: Mapping[str, Any]) -> dict[str, float]:
    return {measure: fmean(values) if isinstance(values, list) else values for measure, values in test.items()}


def _seeds_and_texts(runs: Mapping[Key, Any], choices: Mapping[Key, Any], measure: str) -> list[float]:
    """Return the interval of the largest F1's gain; seeds are the same in all conditions, texts in those of a task."""
    gains: dict[str, dict[int, list[Any]]] = {}
    for key, run in runs.items():
        chosen = (choices[key][rule][0][0] for rule in (LARGEST_F1, BASELINE))
        ours, baseline = (np.array(run["checkpoints"][i]["test"][measure]) for i in chosen)
        gains.setdefault(key[0], {}).setdefault(key[2], []).append(ours - baseline)
    return _redraw([np.array([np.mean(rows, 0) for rows in by_seed.values()]) for by_seed in gains.values()])


def redraw_arms(arms: Mapping[tuple[str, str, int, int], Any]) -> dict[str, list[float]]:
    """Return for each arm with the risk the interval of its F1 at layer 6 minus that of cross-entropy."""
    gains: dict[str, dict[str, list[Any]]] = {}
    values = {key: np.array(reached["test"]["layer6"]) for key, reached in arms.items()}
    plain = {(task, seed): texts for (task, arm, _, seed), texts in values.items() if arm == CROSS_ENTROPY}
    for (task, arm, _, seed), texts in values.items():
        if arm != CROSS_ENTROPY:
            gains.setdefault(arm, {}).setdefault(task, []).append(texts - plain[task, seed])
    return {arm: _redraw([np.array(rows) for rows in by_task.values()]) for arm, by_task in gains.items()}


def _redraw(tasks: Sequence[Any]) -> list[float]:
    """Return the interval of the mean gain of tasks, (seeds, texts) each, when both are drawn anew 4,000 times."""

    def shares(count: int) -> Any:
        return draws.multinomial(count, np.full(count, 1 / count), 4000) / count

    draws = np.random.default_rng(0)
    seeds = shares(len(tasks[0]))
    means = np.mean([((seeds @ task) * shares(task.shape[1])).sum(1) for task in tasks], 0)
    return list(np.quantile(means, [0.025, 0.975]).tolist())


def compare_rules(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return gains over the smallest validation loss, and the share of steps, by rule, condition and seed."""
    reached = {
        (rule, run["condition"], run["seed"]): {
            "steps": (chosen[0][1] + 1) / len(run["step"]),
            **{measure: fmean(run[measure][checkpoint] for checkpoint, _ in chosen) for measure in MEASURES},
        }
        for run in results["rules"]["curves"]
        for rule, chosen in run["choices"].items()
    }
    table = pd.DataFrame.from_dict(reached, "index").rename_axis(["rule", "condition", "seed"])
    baseline = table.loc[BASELINE].assign(steps=0)
    return table.groupby("rule", sort=False, group_keys=False).apply(lambda rows: rows - baseline)


def tables(results: Mapping[str, Any]) -> list[str]:
    """Return the page's tables: differences with 95% intervals of Student's t over seeds, and adjusted p-values."""
    parts = {"rules": _tables_of_rules, "arms": _table_of_arms, "equal_time": _table_of_equal_time}
    return [table for part, make in parts.items() if part in results for table in make(results)]


def _tables_of_rules(results: Mapping[str, Any]) -> list[str]:
    """A seed's gain is its mean over the conditions, so that intervals over seeds allow for what conditions share."""
    gains = compare_rules(results)
    by_seed = gains.groupby(["rule", "seed"], sort=False).mean()
    names = [rule for rule in by_seed.index.unique("rule") if "early stopping" in rule and "at the stop" not in rule]
    names = [*RULES, *names, f"{STOPPING[4]}, weights at the stop", *(f"F1 of {count} texts" for count in SUBSETS)]
    rules = {(rule, f"{by_seed.loc[rule, 'steps'].mean():.0%}"): by_seed.loc[rule, [*MEASURES]] for rule in names}
    conditions = {(name,): rows for name, rows in gains.loc[LARGEST_F1, [*MEASURES]].groupby("condition", sort=False)}
    held_out = [measure for measure in MEASURES if measure != "layer5"]
    tests = {(rule,): (by_seed.loc[LARGEST_F1] - by_seed.loc[rule])[held_out] for rule in (BASELINE, LAST)}
    return [
        format_table(["rule", "trained"], rules),
        format_table([LARGEST_F1], conditions),
        format_table([f"{LARGEST_F1} minus"], tests, list(product(tests, held_out))),
    ]


def _table_of_arms(results: Mapping[str, Any]) -> list[str]:
    arms = pd.DataFrame(results["arms"]).set_index(["steps", "arm", "seed"])[[*MEASURES, "length"]].sort_index()
    differences: dict[tuple[str, ...], pd.DataFrame] = {}
    for steps in arms.index.unique("steps"):
        reached = arms.loc[steps]
        for arm, minus in ((RISK, CROSS_ENTROPY), (RISK, WALL_TIME), (RISK, SHUFFLED), (SHUFFLED, CROSS_ENTROPY)):
            differences[f"{steps} ({len(reached.loc[arm])})", arm, minus] = reached.loc[arm] - reached.loc[minus]
    tested = [(key, measure) for key in differences if key[1] == RISK for measure in HELD_OUT]
    return [format_table(["steps (seeds)", "arm", "minus"], differences, tested)]


def _table_of_equal_time(results: Mapping[str, Any]) -> list[str]:
    """A seed's difference in both tasks is its mean over them."""
    measures = [*MEASURES, "length", "repetition"]
    keys = ["arm", "task", "seed"]
    arms, control = (
        pd.DataFrame(results[part]).set_index(keys)[measures].sort_index() for part in ("equal_time", "control")
    )
    differences: dict[tuple[str, ...], pd.DataFrame] = {}
    tested: list[Any] = []
    for arm, minus in ((RISK, CROSS_ENTROPY), (THIRD, CROSS_ENTROPY), (THIRD, RISK)):
        gains = arms.loc[arm] - arms.loc[minus]
        differences["both", arm, minus] = gains.groupby("seed").mean()
        differences |= {(task, arm, minus): gains.loc[task] for task in gains.index.unique("task")}
        tested += [(("both", arm, minus), measure) for measure in HELD_OUT if minus == CROSS_ENTROPY]
    best, shuffled = control.index.unique("arm")
    (task,) = control.index.unique("task")
    differences[task, best, shuffled] = control.loc[best, task] - control.loc[shuffled, task]
    tested += [((task, best, shuffled), measure) for measure in HELD_OUT]
    return [format_table(["task", "arm", "minus"], differences, tested)]


def format_table(head: list[str], gains: Mapping[tuple[str, ...], pd.DataFrame], tested: Sequence[Any] = ()) -> str:
    """Return a Markdown table of points, with p-values of the tested keys and measures, adjusted together (Holm)."""
    # Differences that are all 0 have no p-value.
    p_values = [np.nan_to_num(ttest_1samp(gains[key][measure], 0).pvalue, nan=1.0) for key, measure in tested]
    adjusted = dict(zip(tested, holm(p_values), strict=True))
    rows = [[*head, *(MEASURES.get(measure, measure) for measure in next(iter(gains.values())))]]
    rows.append(["---"] * len(rows[0]))
    for key, differences in gains.items():
        rows.append([*key])
        for measure, values in (100 * differences).items():
            low, high = mean_interval(values.tolist())
            test = f"; p {adjusted[key, measure]:.3f}" if (key, measure) in adjusted else ""
            rows[-1].append(f"{values.mean():+.2f} ({low:+.2f} to {high:+.2f}{test})")
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw one run's loss and score with the chosen checkpoints, and the gain of each rule with its interval."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    run = next(run for run in results["rules"]["curves"] if run["condition"] == "manual pages / few pairs")
    left.set(xlabel="training step", title="One run: manual pages, few pairs")
    shown = ((left, "val_loss", BASELINE, "C1"), (left.twinx(), "val_f1", LARGEST_F1, "C0"))
    for axis, name, rule, color in shown:
        axis.plot(run["step"], run[name], "o-", color=color)
        axis.axvline(run["step"][run["choices"][rule][0][0]], color=color, linestyle=":")
        axis.set_ylabel(f"{name}; dotted: {rule}", color=color)
    names = [LARGEST_F1, *(STOPPING[patience - 1] for patience in (1, 2, 3, 5)), *RULES[1:]]
    by_seed = 100 * compare_rules(results).groupby(["rule", "seed"]).mean()
    for offset, measure in ((0.0, "layer3"), (0.3, "layer6")):
        gains = by_seed[measure].unstack("seed").loc[names].to_numpy()
        heights, centers = -np.arange(len(names)) - offset, gains.mean(1)
        spread = centers - mean_interval(gains.tolist())[0].numpy()
        right.errorbar(centers, heights, xerr=spread, fmt="o", label=f"F1, {MEASURES[measure]}")
    right.axvline(0, color="gray", linewidth=0.8)
    right.set_yticks(-np.arange(len(names)) - 0.15, names)
    right.set(xlabel="points above the smallest val_loss, test texts", title="All runs, layers that choose nothing")
    right.legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=110)
