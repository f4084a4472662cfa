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
from dataclasses import asdict
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
from examples.study.training import ARMS, CROSS_ENTROPY, REGIMES, RISK, WALL_TIME, Settings, run_arm, run_checkpoints

TASKS = ("manual pages", "docstrings")
ARM_TASK, ARM_STEPS = TASKS[0], (300, 1000)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the missing parts of the study, print its tables, and write and return ``results.json``."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=positive, default=10, help="runs of each condition and arm")
    parser.add_argument("--jobs", type=positive, default=2, help="processes, each with one thread")
    parser.add_argument("--parts", nargs="+", choices=("rules", "arms"), default=("rules", "arms"))
    parser.add_argument("--arm-steps", nargs="+", type=positive, default=ARM_STEPS, help="training steps of the arms")
    parser.add_argument("--output", type=Path, default=Path("outputs/study"))
    parser.add_argument("--tables", type=Path, metavar="RESULTS", help="print the tables of a results.json, and stop")
    options = parser.parse_args(arguments)
    if options.tables is not None:
        stored: dict[str, Any] = json.loads(options.tables.read_text(encoding="utf-8"))
        print(*tables(stored), sep="\n\n")
        return stored
    options.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"settings": asdict(Settings()), "seeds": options.seeds}
    settings = _stored(options.output / "settings.json", partial(dict, asdict(Settings())))
    if settings != results["settings"]:
        parser.error(f"--output {options.output} contains a study with other settings: pass another folder")
    with ProcessPoolExecutor(options.jobs, initializer=_prepare) as pool:
        # Seeds in the outer loop, so that an interrupted study has complete seeds.
        keys = list(product(range(options.seeds), TASKS, REGIMES))
        runs = list(pool.map(_run, *zip(*((options.output, *key) for key in keys), strict=True)))
        if "rules" in options.parts:
            found = {(task, regime, seed): run for (seed, task, regime), (run, _) in zip(keys, runs, strict=True)}
            choices = {(task, regime, seed): one for (seed, task, regime), (_, one) in zip(keys, runs, strict=True)}
            results["rules"] = summarize_rules(found, choices)
        if "arms" in options.parts:
            start = _folder(options.output, ARM_TASK, 0)
            make_times = partial(training.time_steps, start, ARM_TASK, Settings())
            seconds = _stored(options.output / "seconds_per_step.json", partial(pool.submit(make_times).result))
            plan = [(steps, seed, arm) for steps in options.arm_steps for seed in range(options.seeds) for arm in ARMS]
            plan += [(0, seed, "start") for seed in range(options.seeds)]
            ratio = seconds[RISK] / seconds[CROSS_ENTROPY]
            rows = ((options.output, *one, round(one[0] * ratio) if one[2] == WALL_TIME else one[0]) for one in plan)
            arms = pool.map(_run_arm, *zip(*rows, strict=True))
            results["arms"] = summarize_arms(
                {(arm, steps, seed): one for (steps, seed, arm), one in zip(plan, arms, strict=True)}, seconds
            )
    with write_atomically(options.output / "results.json") as file:
        file.write(json.dumps(results, indent=1) + "\n")
    if "rules" in results:
        draw(results, options.output / "figure.png")
    print(*tables(results), f"Written: {options.output / 'results.json'}", sep="\n\n")
    return results


def _prepare() -> None:
    torch.set_num_threads(1)
    quieten()


def _folder(output: Path, task: str, seed: int) -> Path:
    return output / f"{task.replace(' ', '_')}.seed{seed}"


def _run(output: Path, seed: int, task: str, regime: str) -> tuple[dict[str, Any], dict[str, list[Choice]]]:
    """Train and store one run, and apply the rules to it."""
    keep = _folder(output, task, seed) if regime == "all pairs" else None
    name = f"{task} {regime} seed{seed}".replace(",", "").replace(" ", "_")
    make = partial(run_checkpoints, task, regime, seed, Settings(), keep)
    run = _stored(output / f"{name}.json", make)
    found = _stored(output / f"{name}.rules.json", lambda: apply_rules(run))
    print(f"{name}: done", flush=True)
    return run, {rule: [Choice(*one) for one in choices] for rule, choices in found.items()}


def _run_arm(output: Path, steps: int, seed: int, arm: str, arm_steps: int) -> dict[str, Any]:
    """Train and store one arm."""
    name = f"arm {arm} {steps} seed{seed}".replace(",", "").replace(" ", "_")
    start = _folder(output, ARM_TASK, seed)
    make = partial(run_arm, start, ARM_TASK, arm, arm_steps, seed, Settings())
    found: dict[str, Any] = _stored(output / f"{name}.json", make)
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
