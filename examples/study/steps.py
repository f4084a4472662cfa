"""How long a step of each arm takes, measured in turn so that a busy machine slows all alike."""

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
    """Time one step of every arm, again and again on the same batch.

    Args:
        settings: of the study.
        task: whose texts are used.
        start: file of the shared weights.
        arms: the arms.
        rounds: how often each is timed.

    Returns:
        Median seconds of a step, forward and backward and update, by arm.
    """
    ways: dict[str, Callable[[], Any]] = {}
    for arm in arms:
        module = make_module(settings, arm, start, 0.0)  # steps of no length: the texts that are sampled stay alike
        module.to(settings.device)
        module.log = module.log_dict = lambda *_, **__: None  # there is no trainer to log to
        batch = next(iter(training_batches(module, task.train, settings, seed=0)))
        moved = {key: value.to(module.device) if hasattr(value, "to") else value for key, value in batch.items()}
        ways[arm.name] = partial(_step, module, module.configure_optimizers()["optimizer"], moved)
    return {name: median(seconds) for name, seconds in in_turn(ways, rounds).items()}


def _step(module: Studied, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> None:
    """Train on a batch."""
    optimizer.zero_grad()
    module.training_step(batch, 0).backward()
    optimizer.step()
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
