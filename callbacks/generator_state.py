"""Names of a generator's inputs, and random states that validation restores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature

import numpy as np
import torch
from torch import nn
from transformers import GenerationMixin

__all__ = ["isolate_random_state", "list_input_names"]


def list_input_names(model: nn.Module) -> set[str] | None:
    """Return the names of the inputs that a model takes; ``None`` where it takes any.

    ``forward(*args, **kwargs)`` of a wrapper, or of a subclass, does not name them: those of the wrapped Hugging Face
    model and of its base classes are included.
    """
    wrapped = next((part for part in model.modules() if isinstance(part, GenerationMixin)), None)
    parameters_of_forward = signature(model.forward).parameters.values()
    if wrapped is None and any(p.kind is Parameter.VAR_KEYWORD for p in parameters_of_forward):
        return None
    bases = () if wrapped is None else type(wrapped).__mro__
    forwards = [vars(base)["forward"] for base in bases if "forward" in vars(base)]
    parameters = [*parameters_of_forward, *(p for forward in forwards for p in signature(forward).parameters.values())]
    return {p.name for p in parameters if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)} - {"self"}


@contextmanager
def isolate_random_state(device: torch.device) -> Iterator[None]:
    """Run a block and restore the random states of Python, NumPy, torch and, if on one, of all CUDA devices."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
