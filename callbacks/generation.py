"""Generating text inside a callback hook without disturbing training."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

__all__ = ["Generate", "undisturbed"]

Generate = Callable[[pl.LightningModule, Any], tuple[Sequence[str], Sequence[str] | Sequence[Sequence[str]]]]
"""A function of the module and a batch that returns generated texts and their references."""


@contextmanager
def undisturbed(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Generator[None, None, None]:
    """Run code in evaluation mode, without gradients and in the trainer's precision, and leave no trace in training.

    Lightning calls callback hooks outside its precision context. Whatever happens inside, also an exception, random
    states (Python, NumPy, torch, the module's CUDA device) and each submodule's train or eval flag come back.

    Args:
        trainer: the running trainer.
        pl_module: the module that generates.
    """
    modes = [(module, module.training) for module in pl_module.modules()]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = [pl_module.device] if pl_module.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad(), trainer.precision_plugin.forward_context():
            pl_module.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training
        random.setstate(python_state)
        np.random.set_state(numpy_state)
