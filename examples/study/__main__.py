"""Compare rules that choose checkpoints, and minimum risk with cross-entropy, over several seeds.

An interrupted study resumes where it stopped; a larger --seeds extends it.

    python -m examples.study
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertscore_tm.utilities.files import write_atomically
from examples.docstrings import positive, quieten
from examples.study import training
from examples.study.results import draw, summarize_arms, summarize_rules, tables
from examples.study.rules import apply_rules
from examples.study.training import ARMS, CROSS_ENTROPY, REGIMES, RISK, WALL_TIME

TASKS = ("manual pages", "docstrings")
ARM_TASK, ARM_STEPS = TASKS[0], (300, 1000)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the missing parts of the study, print its tables, and write and return ``results.json``."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=positive, default=10, help="runs of each condition and arm")
    parser.add_argument("--jobs", type=positive, default=2, help="processes, each with one thread")
    parser.add_argument("--output", type=Path, default=Path("outputs/study"))
    options = parser.parse_args(arguments)
    output: Path = options.output
    output.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs, initializer=_prepare) as pool:
        # Seeds in the outer loop, so that an interrupted study has complete seeds.
        keys = [(task, regime, seed) for seed, task, regime in product(range(options.seeds), TASKS, REGIMES)]
        pairs = list(pool.map(_run, [output] * len(keys), keys))
        times = pool.submit(_stored, output, "step_seconds", training.time_steps, output / "start_0", ARM_TASK).result()
        plan = [(arm, steps, seed) for steps, seed, arm in product(ARM_STEPS, range(options.seeds), ARMS)]
        arms = list(pool.map(_run_arm, [output] * len(plan), plan, [times[RISK] / times[CROSS_ENTROPY]] * len(plan)))
    runs, choices = (dict(zip(keys, column, strict=True)) for column in zip(*pairs, strict=True))
    results = {"rules": summarize_rules(runs, choices), "arms": summarize_arms(dict(zip(plan, arms, strict=True)))}
    results = json.loads(json.dumps(results | {"step_seconds": times}), parse_float=lambda text: round(float(text), 6))
    write_atomically(output / "results.json", json.dumps(results))
    draw(results, output / "figure.png")
    print(*tables(results), f"Written: {output / 'results.json'}", sep="\n\n")
    return results


def _prepare() -> None:
    torch.set_num_threads(1)
    quieten()


def _run(output: Path, key: tuple[str, str, int]) -> tuple[Any, Any]:
    """Train and store one run, and apply the rules to it."""
    task, regime, seed = key
    keep = output / f"start_{seed}" if (task, regime) == (ARM_TASK, "all pairs") else None
    run = _stored(output, f"{task} {regime} seed{seed}", training.run_checkpoints, task, regime, seed, keep)
    return run, _stored(output, f"{task} {regime} seed{seed}.rules", apply_rules, run)


def _run_arm(output: Path, key: tuple[str, int, int], longer: float) -> Any:
    """Train and store one arm; the one of equal wall time for ``longer`` times as many steps."""
    arm, steps, seed = key
    count = round(steps * longer) if arm == WALL_TIME else steps
    start, name = output / f"start_{seed}", f"arm {arm} {steps} seed{seed}"
    return _stored(output, name, training.run_arm, start, ARM_TASK, arm, count, seed)


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
