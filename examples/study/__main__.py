"""Compare rules that choose checkpoints, and minimum risk with cross-entropy, over several seeds.

An interrupted study resumes where it stopped; a larger --seeds extends it. --tables prints a finished study instead.

    python -m examples.study
    python -m examples.study --tables examples/study/results.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertscore_tm.utilities.files import write_atomically
from examples.docstrings import positive, quieten
from examples.study import training
from examples.study.results import draw, summarize_arms, summarize_rules, tables
from examples.study.rules import Choice, apply_rules
from examples.study.training import ARMS, CROSS_ENTROPY, REGIMES, RISK, WALL_TIME, run_arm, run_checkpoints

TASKS = ("manual pages", "docstrings")
ARM_TASK, ARM_STEPS = TASKS[0], (300, 1000)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the missing parts of the study, print its tables, and write and return ``results.json``."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=positive, default=10, help="runs of each condition")
    parser.add_argument("--arm-seeds", type=int, nargs=2, default=(10, 10), help="with 300 and with 1,000 steps")
    parser.add_argument("--jobs", type=positive, default=2, help="processes, each with one thread")
    parser.add_argument("--output", type=Path, default=Path("outputs/study"))
    parser.add_argument("--tables", type=Path, metavar="RESULTS", help="print the tables of a results.json, and stop")
    options = parser.parse_args(arguments)
    if options.tables is not None:
        results: dict[str, Any] = json.loads(options.tables.read_text(encoding="utf-8"))
        print(*tables(results), sep="\n\n")
        return results
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs, initializer=_prepare) as pool:
        # Seeds in the outer loop, so that an interrupted study has complete seeds.
        keys = [(task, regime, seed) for seed, task, regime in product(range(options.seeds), TASKS, REGIMES)]
        found = list(pool.map(_run, [output] * len(keys), keys))
        times = _stored(
            output / "seconds_per_step.json",
            lambda: pool.submit(training.time_steps, _start(output, 0), ARM_TASK).result(),
        )
        counts = zip(ARM_STEPS, options.arm_seeds, strict=True)
        plan = [(arm, steps, seed) for steps, count in counts for seed in range(count) for arm in ARMS]
        longer = times[RISK] / times[CROSS_ENTROPY]
        arms = list(pool.map(_run_arm, [output] * len(plan), plan, [longer] * len(plan)))
    texts = training.load_task(TASKS[1]).train[:96]
    results = {
        "rules": summarize_rules(*(dict(zip(keys, column, strict=True)) for column in zip(*found, strict=True))),
        "seconds_per_step": times,
        "t5_small": _stored(output / "t5_small.json", partial(training.time_t5_small, texts)),
        "arms": summarize_arms(dict(zip(plan, arms, strict=True))),
    }
    results = json.loads(json.dumps(results), parse_float=lambda text: round(float(text), 6))
    with write_atomically(output / "results.json") as file:
        json.dump(results, file)
    draw(results, output / "figure.png")
    print(*tables(results), f"Written: {output / 'results.json'}", sep="\n\n")
    return results


def _prepare() -> None:
    torch.set_num_threads(1)
    quieten()


def _start(output: Path, seed: int) -> Path:
    return output / f"{ARM_TASK.replace(' ', '_')}.seed{seed}"


def _run(output: Path, key: tuple[str, str, int]) -> tuple[dict[str, Any], dict[str, list[Choice]]]:
    """Train and store one run, and apply the rules to it."""
    task, regime, seed = key
    name = f"{task} {regime} seed{seed}".replace(",", "").replace(" ", "_")
    keep = _start(output, seed) if (task, regime) == (ARM_TASK, "all pairs") else None
    run = _stored(output / f"{name}.json", lambda: run_checkpoints(task, regime, seed, keep))
    found = _stored(output / f"{name}.rules.json", lambda: apply_rules(run))
    print(f"{name}: done", flush=True)
    return run, {rule: [Choice(*one) for one in choices] for rule, choices in found.items()}


def _run_arm(output: Path, key: tuple[str, int, int], longer: float) -> dict[str, Any]:
    """Train and store one arm; the one of equal wall time for ``longer`` times as many steps."""
    arm, steps, seed = key
    name = f"arm {arm} {steps} seed{seed}".replace(",", "").replace(" ", "_")
    count = round(steps * longer) if arm == WALL_TIME else steps
    found: dict[str, Any] = _stored(
        output / f"{name}.json", lambda: run_arm(_start(output, seed), ARM_TASK, arm, count, seed)
    )
    print(f"{name}: done", flush=True)
    return found


def _stored(path: Path, make: Callable[[], Any]) -> Any:
    """Return the content of a JSON file, which is made first if it is missing."""
    if not path.exists():
        content = make()
        with write_atomically(path) as file:
            json.dump(content, file)
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
