"""Evaluation mode of a module within a ``with`` block."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and restore the mode of every submodule, also after an exception.

    Submodules are restored one by one, because some of them may have been in evaluation mode before.
    """
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for part, training in modes:
            part.training = training
