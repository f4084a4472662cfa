"""The device that functions compute on."""

from __future__ import annotations

import torch

__all__ = ["default_device"]


def default_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on.

    Args:
        device: a device or its name.

    Returns:
        That device. Default: the GPU (CUDA, or MPS on Apple's machines) if there is one, else the CPU.

    Example:
        >>> default_device("cpu")
        device(type='cpu')
    """
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
