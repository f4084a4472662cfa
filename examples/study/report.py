"""Report of the study: tables, ``results.json`` and ``figure.png``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertscore_tm import FrozenEncoder
from bertscore_tm.utilities.files import write_atomically
from examples.study.arms import ARMS, BASELINE, COMPARISONS, TESTED
from examples.study.figure import draw
from examples.study.results import Comparison, Spread, compare, spreads
from examples.study.training import Settings
from examples.study.work import START, checkpoint_facts, ensure_timing, run_path

__all__ = ["differences_table", "means_table", "report"]


def report(settings: Settings, output: Path, num_checkpoints: int, num_seeds: int) -> dict[str, Any]:
    """Compare the runs, print the tables, and write ``results.json`` and ``figure.png``.

    Args:
        settings: settings of the study.
        output: folder of the study.
        num_checkpoints: number of checkpoints to report.
        num_seeds: number of seeds to report.

    Returns:
        The content of ``results.json``.
    """
    keys = [(arm, number, seed) for arm in ARMS for number in range(num_checkpoints) for seed in range(num_seeds)]
    runs = {key: _read(run_path(output, key[1], key[0], key[2])) for key in keys}
    starts = {(START, number, 0): _read(run_path(output, number, START, 0)) for number in range(num_checkpoints)}
    measures = [f"layer{layer}_f1" for layer in (settings.layer, *settings.held_out_layers)]
    measures += ["rougeL", "repetition"]
    found = spreads(starts) | spreads(runs)
    seconds = ensure_timing(settings, output)
    steps = {arm: runs[arm, 0, 0]["steps"] for arm in ARMS}
    times = {arm: steps[arm] * seconds[arm] for arm in ARMS}
    compared = compare(runs, measures)
    encoder = FrozenEncoder(settings.encoder, num_layers=settings.layer)
    results = {
        "settings": asdict(settings) | {"encoder": encoder.signature()},
        "checkpoints": [checkpoint_facts(output, number) for number in range(num_checkpoints)],
        "seeds": num_seeds,
        "seconds_per_step": seconds,
        "steps": steps,
        "arms": {arm: {key: asdict(spread) for key, spread in each.items()} for arm, each in found.items()},
        "comparisons": [asdict(one) for one in compared],
    }
    print(f"\n{num_checkpoints} checkpoints, {num_seeds} seeds each; points, mean ± standard deviation over runs")
    print(means_table(found, measures, times))
    print("\ndifference (95% interval over seeds and texts; p adjusted by Holm where tested)")
    print(differences_table(compared))
    with write_atomically(output / "results.json") as file:
        file.write(json.dumps(results, indent=2) + "\n")
    draw(compared, output / "figure.png")
    print(f"\nWritten: {output / 'results.json'}, {output / 'figure.png'}")
    return results


def means_table(found: Mapping[str, Mapping[str, Spread]], measures: Sequence[str], times: Mapping[str, float]) -> str:
    """Return a table of means and standard deviations over runs.

    Args:
        found: the result of ``spreads``.
        measures: names of the measures to show.
        times: training time by arm.

    Returns:
        A Markdown table; scores are multiplied by 100.
    """
    rows = [["arm", *map(_title, measures), "length", "time"]]
    for arm, each in found.items():
        cells = [_shown(each[key], 100, 2) for key in measures]
        time = f"{times[arm] / times[BASELINE]:.1f}" if arm in times else ""
        rows.append([arm, *cells, _shown(each["length_ratio"], 1, 2), time])
    return _markdown(rows)


def differences_table(compared: Sequence[Comparison]) -> str:
    """Return a table of the comparisons.

    Args:
        compared: the result of ``compare``.

    Returns:
        A Markdown table; differences are multiplied by 100.
    """
    measures = list(dict.fromkeys(one.measure for one in compared))
    rows = [["arm", "minus", *map(_title, measures)]]
    by_key = {(one.arm, one.minus, one.measure): one for one in compared}
    for arm, minus in COMPARISONS:
        rows.append([arm, minus, *(_difference(by_key[arm, minus, measure]) for measure in measures)])
    return _markdown(rows)


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _title(measure: str) -> str:
    titles = {"rougeL": "ROUGE-L", "repetition": "repeated"}
    shown = titles.get(measure, measure.replace("layer", "F1, layer ").removesuffix("_f1"))
    return f"**{shown}**" if measure in TESTED else shown


def _shown(spread: Spread, scale: float, places: int) -> str:
    mean = f"{scale * spread.mean:.{places}f}"
    return mean if spread.deviation is None else f"{mean} ± {scale * spread.deviation:.{places}f}"


def _difference(one: Comparison) -> str:
    interval = f"{100 * one.low:+.2f} to {100 * one.high:+.2f}"
    tested = "" if one.p_adjusted is None else f"; p {one.p_adjusted:.3f}"
    return f"{100 * one.difference:+.2f} ({interval}{tested})"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])
