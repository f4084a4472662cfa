"""Time of a training step of each arm, measured in turn so that other programs slow all arms equally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from examples.benchmarks.rounds import in_turn
from examples.study.arms import Arm
from examples.study.tasks import Task
from examples.study.training import Settings, Studied, make_module, training_batches

__all__ = ["seconds_per_step"]


def seconds_per_step(settings: Settings, task: Task, start: Path, arms: Sequence[Arm], rounds: int) -> dict[str, float]:
    """Time a step of every arm several times on the same batch.

    Args:
        settings: settings of the study.
        task: task with the texts.
        start: file of the shared weights.
        arms: the arms.
        rounds: number of timed steps of each arm.

    Returns:
        Median seconds of a step (forward, backward and update), by arm.
    """
    steps: dict[str, Callable[[], Any]] = {}
    for arm in arms:
        module = make_module(settings, arm, start, 0.0)  # learning rate 0, so that sampled texts stay similar
        module.to(settings.device)
        module.log = module.log_dict = lambda *_, **__: None  # without a trainer
        batch = next(iter(training_batches(module, task.train, settings, seed=0)))
        moved = {key: value.to(module.device) if hasattr(value, "to") else value for key, value in batch.items()}
        steps[arm.name] = partial(_step, module, module.configure_optimizers()["optimizer"], moved)
    return {name: median(seconds) for name, seconds in in_turn(steps, rounds).items()}


def _step(module: Studied, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> None:
    """Train on a batch."""
    optimizer.zero_grad()
    module.training_step(batch, 0).backward()
    optimizer.step()
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
