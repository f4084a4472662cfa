"""Time, peak memory and matrix-product rate of a device, with synchronization."""

from __future__ import annotations

from collections.abc import Callable

import torch

from examples.benchmarks.rounds import in_turn

__all__ = ["describe_gpu", "matrix_rate", "peak_megabytes", "waited"]


def waited(call: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Wrap a function so that it returns when the device has finished its work.

    Args:
        call: function without arguments.
        device: device of the function.

    Returns:
        The wrapped function, which can be timed.

    Example:
        >>> waited(lambda: print("done"), torch.device("cpu"))()
        done
    """

    def until_done() -> None:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return until_done


def peak_megabytes(call: Callable[[], object], device: torch.device) -> float:
    """Return the largest growth of the tensors' memory on a CUDA device during a call.

    Args:
        call: function without arguments.
        device: CUDA device of the function.

    Returns:
        Megabytes of 1,000,000 bytes.
    """
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    waited(call, device)()
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


def matrix_rate(
    rows: int, width: int, inner: int, dtype: torch.dtype, device: torch.device, rounds: int, products: int = 5
) -> float:
    """Measure how fast a device multiplies matrices of an encoder's shapes.

    Args:
        rows: rows of the first matrix, the tokens of a batch.
        width: width of the encoder.
        inner: width inside its feed-forward layers.
        dtype: dtype of the matrices.
        device: device to multiply on.
        rounds: number of timings; the shortest counts.
        products: products per timing.

    Returns:
        Floating-point operations per second.

    Example:
        >>> matrix_rate(64, 32, 128, torch.float32, torch.device("cpu"), rounds=1) > 0
        True
    """
    tokens = torch.randn(rows, width, device=device).to(dtype)
    weight = torch.randn(width, inner, device=device).to(dtype)

    def multiply() -> None:
        for _ in range(products):
            tokens @ weight

    best = min(in_turn({"products": waited(multiply, device)}, rounds)["products"])
    return 2 * rows * width * inner * products / best


def describe_gpu() -> str:
    """Return the name of the CUDA device and whether its float32 products use TF32.

    Returns:
        One line, for the settings.
    """
    exact = torch.get_float32_matmul_precision() == "highest"
    return f"{torch.cuda.get_device_name()}, float32 products {'without' if exact else 'with'} TF32"
