"""Jobs of a study's processes: create missing starts and runs in the study's folder."""

from __future__ import annotations

import json
from pathlib import Path

from bertscore_tm.utilities.files import write_atomically
from examples.study.arms import Arm
from examples.study.tasks import load_task
from examples.study.training import Settings, make_start, run_arm

__all__ = ["ensure_run", "ensure_start", "run_path", "start_path"]


def start_path(output: Path, name: str) -> Path:
    """Return the path of the weights of a task's shared start.

    Args:
        output: folder of the study.
        name: name of the task.

    Returns:
        The path.
    """
    return output / name / "start.safetensors"


def run_path(output: Path, name: str, arm: Arm, seed: int) -> Path:
    """Return the path of a run's figures and summaries.

    Args:
        output: folder of the study.
        name: name of the task.
        arm: the arm.
        seed: the seed.

    Returns:
        The path.
    """
    return output / name / arm.slug / f"seed{seed}.json"


def ensure_start(settings: Settings, name: str, output: Path) -> str:
    """Train the shared start of a task, unless its file exists.

    Args:
        settings: settings of the study.
        name: name of the task.
        output: folder of the study.

    Returns:
        One line about the task.
    """
    task = load_task(name, output, settings.train_pairs, settings.eval_pairs)
    path = start_path(output, name)
    if not path.exists():
        make_start(settings, task, path)
    return f"{name}: {len(task.train)} training pairs, {len(task.held_out)} held-out pairs; start {path}"


def ensure_run(settings: Settings, name: str, output: Path, arm: Arm, seed: int) -> str:
    """Run one arm with one seed, unless its file exists.

    Args:
        settings: settings of the study.
        name: name of the task.
        output: folder of the study.
        arm: the arm.
        seed: the seed.

    Returns:
        One line about the run.
    """
    path = run_path(output, name, arm, seed)
    if path.exists():
        return f"{name}, {arm.name}, seed {seed}: already run"
    task = load_task(name, output, settings.train_pairs, settings.eval_pairs)
    result = run_arm(settings, task, start_path(output, name), arm, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as file:
        file.write(json.dumps(result) + "\n")
    scores = result["measured"]["trained_f1"]
    return f"{name}, {arm.name}, seed {seed}: F1 {sum(scores) / len(scores):.4f} ({result['seconds']:.0f} s)"
