"""What the processes of a study do: make what is missing, in files of its folder."""

from __future__ import annotations

import json
from pathlib import Path

from examples.study.arms import Arm
from examples.study.files import write_whole
from examples.study.tasks import load_task
from examples.study.training import Settings, make_start, run_arm

__all__ = ["run_path", "share_run", "share_start", "start_path"]


def start_path(output: Path, name: str) -> Path:
    """Return where the weights of a task's shared start are.

    Args:
        output: folder of the study.
        name: of the task.

    Returns:
        The file.
    """
    return output / name / "start.safetensors"


def run_path(output: Path, name: str, arm: Arm, seed: int) -> Path:
    """Return where a run's figures and summaries are.

    Args:
        output: folder of the study.
        name: of the task.
        arm: the arm.
        seed: the seed.

    Returns:
        The file.
    """
    return output / name / arm.slug / f"seed{seed}.json"


def share_start(settings: Settings, name: str, output: Path) -> str:
    """Make the shared start of a task, unless it is there.

    Args:
        settings: of the study.
        name: of the task.
        output: folder of the study.

    Returns:
        What was done, in a line.
    """
    task = load_task(name, output, settings.train_pairs, settings.eval_pairs)
    path = start_path(output, name)
    if not path.exists():
        make_start(settings, task, path)
    return f"{name}: {len(task.train)} pairs to train on, {len(task.held_out)} held out; start {path}"


def share_run(settings: Settings, name: str, output: Path, arm: Arm, seed: int) -> str:
    """Make one run, unless it is there.

    Args:
        settings: of the study.
        name: of the task.
        output: folder of the study.
        arm: the arm.
        seed: the seed.

    Returns:
        How it went, in a line.
    """
    path = run_path(output, name, arm, seed)
    if path.exists():
        return f"{name}, {arm.name}, seed {seed}: there"
    task = load_task(name, output, settings.train_pairs, settings.eval_pairs)
    result = run_arm(settings, task, start_path(output, name), arm, seed)
    write_whole(path, json.dumps(result) + "\n")
    scores = result["measured"]["trained_f1"]
    return f"{name}, {arm.name}, seed {seed}: F1 {sum(scores) / len(scores):.4f} ({result['seconds']:.0f} s)"
