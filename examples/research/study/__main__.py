"""Compare rules that choose checkpoints, and minimum risk with cross-entropy, over several seeds.

An interrupted study resumes where it stopped; a larger --seeds extends it. A part alone replaces its results in
results.json of the output folder, which keeps those of the others.

    python -m examples.research.study
    python -m examples.research.study --parts equal_time
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertscore_tm.utilities.files import write_atomically
from examples.programs.docstrings import positive, quieten
from examples.research.study import training
from examples.research.study.results import best_interval, draw, redraw_arms, summarize_arms, summarize_rules, tables
from examples.research.study.rules import apply_rules
from examples.research.study.training import (
    ARMS,
    CROSS_ENTROPY,
    EVERY,
    REGIMES,
    RISK,
    SHUFFLED,
    THIRD,
    THIRD_SHUFFLED,
    WALL_TIME,
)

TASKS = ("manual pages", "docstrings")
ARM_TASK, ARM_STEPS, ALL_PAIRS = TASKS[0], (300, 1000), "all pairs"
# Arms that train for the time of the first number of steps of the risk, and the control of each.
EQUAL_TIME, CONTROLS = (CROSS_ENTROPY, RISK, THIRD), {RISK: SHUFFLED, THIRD: THIRD_SHUFFLED}
PARTS = ("rules", "arms", "equal_time")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the missing runs of the parts, print their tables, and write and return ``results.json``."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.research.study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=positive, default=10, help="runs of each condition and arm")
    parser.add_argument("--jobs", type=positive, default=2, help="processes, each with one thread")
    parser.add_argument("--output", type=Path, default=Path("outputs/study"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    stored = output / "results.json"
    results: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    with ProcessPoolExecutor(options.jobs, initializer=_prepare) as pool:

        def run_arms(plan: list[tuple[str, str, int, int]]) -> dict[tuple[str, str, int, int], Any]:
            arms = pool.map(_run_arm, [output] * len(plan), plan, [times] * len(plan), [options.seeds] * len(plan))
            return dict(zip(plan, arms, strict=True))

        # Seeds in the outer loop, so that an interrupted study has complete seeds.
        regimes = REGIMES if "rules" in options.parts else (ALL_PAIRS,)
        keys = [(task, regime, seed) for seed, task, regime in product(range(options.seeds), TASKS, regimes)]
        pairs = list(pool.map(_run, [output] * len(keys), keys))
        times = {task: pool.submit(_time_steps, output, task).result() for task in TASKS}
        if "rules" in options.parts:
            runs, choices = (dict(zip(keys, column, strict=True)) for column in zip(*pairs, strict=True))
            results["rules"] = summarize_rules(runs, choices)
        if "arms" in options.parts:
            plan = [(ARM_TASK, arm, steps, seed) for steps, seed, arm in product(ARM_STEPS, range(options.seeds), ARMS)]
            results["arms"] = summarize_arms(run_arms(plan))
        if "equal_time" in options.parts:
            arms = (*EQUAL_TIME, *CONTROLS.values())
            counts = {(task, arm): _steps_for_equal_time(times[task], arm) for task in TASKS for arm in arms}
            runs_of_seeds = product(range(options.seeds), TASKS, EQUAL_TIME)
            plan = [(task, arm, counts[task, arm], seed) for seed, task, arm in runs_of_seeds]
            arms_of_equal_time = run_arms(plan)
            results["equal_time"] = summarize_arms(arms_of_equal_time)
            results["equal_time_redrawn"] = redraw_arms(arms_of_equal_time)
            # The control has seeds of its own.
            best = best_interval(results["equal_time"])
            controlled = product(range(options.seeds, 2 * options.seeds), (best, CONTROLS[best]))
            plan = [(ARM_TASK, arm, counts[ARM_TASK, arm], seed) for seed, arm in controlled]
            results["control"] = summarize_arms(run_arms(plan))
    results = json.loads(json.dumps(results | {"step_seconds": times}), parse_float=lambda text: round(float(text), 6))
    write_atomically(stored, json.dumps(results))
    if "rules" in results:
        draw(results, output / "figure.png")
    print(*tables(results), f"Written: {stored}", sep="\n\n")
    return results


def _prepare() -> None:
    torch.set_num_threads(1)
    quieten()


def _run(output: Path, key: tuple[str, str, int]) -> tuple[Any, Any]:
    """Train and store one run, and apply the rules to it."""
    task, regime, seed = key
    keep = _start(output, task, seed) if regime == ALL_PAIRS else None
    run = _stored(output, f"{task} {regime} seed{seed}", training.run_checkpoints, task, regime, seed, keep)
    return run, _stored(output, f"{task} {regime} seed{seed}.rules", apply_rules, run)


def _start(output: Path, task: str, seed: int) -> Path:
    return output / f"start_{task.replace(' ', '_')}_{seed}"


def _time_steps(output: Path, task: str) -> dict[str, float]:
    times: dict[str, float] = _stored(
        output, f"step_seconds {task}", training.time_steps, _start(output, task, 0), task
    )
    return times


def _steps_for_equal_time(times: Mapping[str, float], arm: str) -> int:
    """Return how many steps of an arm take the time of the first number of steps with the risk on each."""
    share = 1 / EVERY[arm] if arm in EVERY else 0
    return round(ARM_STEPS[0] * times[RISK] / (times[CROSS_ENTROPY] + share * (times[RISK] - times[CROSS_ENTROPY])))


def _run_arm(
    output: Path, key: tuple[str, str, int, int], times: Mapping[str, Mapping[str, float]], starts: int
) -> Any:
    """Train and store one arm; the one of equal wall time for as many more steps as it is faster."""
    task, arm, steps, seed = key
    count = round(steps * times[task][RISK] / times[task][CROSS_ENTROPY]) if arm == WALL_TIME else steps
    name = f"arm {task} {arm} {steps} seed{seed}"
    return _stored(output, name, training.run_arm, _start(output, task, seed % starts), task, arm, count, seed)


def _stored(output: Path, name: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return the content of a JSON file, which is made first if it is missing."""
    path = output / f"{name.replace(',', '').replace(' ', '_')}.json"
    if not path.exists():
        content = make(*arguments)
        write_atomically(path, json.dumps(content))
        print(f"{path.name}: done", flush=True)
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
