"""Time and memory of ``linear_expected_embedding``, compared with the plain product of all logits.

python -m examples.benchmarks.expected_embedding [--positions N] [--vocabulary N] [--width N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from bertscore_tm.losses.expected_embedding import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.relaxation import softmax_relaxation
from examples.benchmarks.processes import resident_bytes, run_fresh
from examples.benchmarks.tables import Record, table

__all__ = [
    "COLUMNS",
    "IMPLEMENTATIONS",
    "MADE_UP_SIZES",
    "Inputs",
    "compare_implementations",
    "peak_beyond_gradient",
    "peak_growth",
]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_WARM_SIZES = (8, 500, 16)
# Positions, vocabulary and width.
MADE_UP_SIZES = (2048, 50_265, 768)

COLUMNS = {
    "implementation": "",
    "cross_entropy": "",
    "peak": ",",
    "beyond_weight_gradient": ",",
    "memory_ratio": ".3f",
    "time_ratio": ".2f",
    "difference": ".1e",
}


class Inputs:
    """Random hidden states, output layer, embeddings and targets with a fixed seed.

    Args:
        positions: number of hidden states.
        vocabulary: number of tokens.
        width: width of hidden states and embeddings.
    """

    def __init__(self, positions: int, vocabulary: int, width: int) -> None:
        random = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(positions, width, generator=random).requires_grad_()
        # Logits of a standard deviation of 2, near those of language models.
        self.weight = torch.randn(vocabulary, width, generator=random).mul_(2 / width**0.5).requires_grad_()
        self.bias = torch.randn(vocabulary, generator=random).requires_grad_()
        self.table = torch.randn(vocabulary, width, generator=random)
        self.target = torch.randint(vocabulary, (positions,), generator=random)
        # The gradient of the embeddings, as from a loss.
        self.grad = torch.randn(positions, width, generator=random).div_(positions)


def plain(inputs: Inputs, cross_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Return expected embeddings with the logits and probabilities of all positions in memory.

    Args:
        inputs: the inputs.
        cross_entropy: compute cross-entropy from the same logits.

    Returns:
        Expected embeddings and cross-entropy.
    """
    logits = F.linear(inputs.hidden, inputs.weight, inputs.bias)
    loss = F.cross_entropy(logits, inputs.target) if cross_entropy else None
    return expected_embedding(softmax_relaxation(logits), inputs.table), loss


def in_parts(inputs: Inputs, cross_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Return expected embeddings with the logits of a part of the vocabulary in memory at a time.

    Args:
        inputs: the inputs.
        cross_entropy: compute cross-entropy in the same pass.

    Returns:
        Expected embeddings and cross-entropy.
    """
    if not cross_entropy:
        y = linear_expected_embedding(inputs.hidden, inputs.weight, inputs.table, linear_bias=inputs.bias)
        return y, None
    return linear_expected_embedding(inputs.hidden, inputs.weight, inputs.table, inputs.target, linear_bias=inputs.bias)


Implementation = Callable[[Inputs, bool], tuple[Tensor, Tensor | None]]
IMPLEMENTATIONS: dict[str, Implementation] = {"plain": plain, "in parts": in_parts}


def peak_growth(function: Callable[[], object]) -> int:
    """Return the largest growth of this process's memory during a call.

    Args:
        function: function without arguments.

    Returns:
        Peak of the resident set size during the call minus its value before, in bytes.

    Raises:
        OSError: the system is not Linux.
    """
    before = resident_bytes()
    # Resets the peak.
    _CLEAR.write_text("5")
    function()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 - before


def compare_implementations(positions: int, vocabulary: int, width: int, repeats: int = 5) -> list[Record]:
    """Compare forward and backward passes of the implementations, with and without cross-entropy.

    Args:
        positions: number of hidden states.
        vocabulary: number of tokens.
        width: width of hidden states and embeddings.
        repeats: number of timings; the shortest counts.

    Returns:
        A record for each implementation: its ``peak`` memory in a separate process, in bytes; the part
        ``beyond_weight_gradient``; the ratios of this part and of the wall time to those of the plain product; and the
        largest ``difference`` of an embedding or gradient from the plain product's, relative to the largest value.
    """
    inputs = Inputs(positions, vocabulary, width)
    records: list[Record] = []
    for cross_entropy in (False, True):
        shortest = dict.fromkeys(IMPLEMENTATIONS, float("inf"))
        difference = dict.fromkeys(IMPLEMENTATIONS, 0.0)
        for repeat in range(repeats):
            results: dict[str, list[Tensor]] = {}
            # Reversed in every other round, as the first is often slower.
            for name in (list(IMPLEMENTATIONS), list(IMPLEMENTATIONS)[::-1])[repeat % 2]:
                start = time.perf_counter()
                results[name] = _pass(IMPLEMENTATIONS[name], inputs, cross_entropy)
                shortest[name] = min(shortest[name], time.perf_counter() - start)
            difference = {name: _distance(results[name], results["plain"]) for name in IMPLEMENTATIONS}
        beyond = {
            name: peak_beyond_gradient(name, positions, vocabulary, width, cross_entropy) for name in IMPLEMENTATIONS
        }
        records += [
            {
                "implementation": name,
                "cross_entropy": cross_entropy,
                "peak": beyond[name] + inputs.weight.nbytes,
                "beyond_weight_gradient": beyond[name],
                "memory_ratio": beyond[name] / beyond["plain"],
                "time_ratio": shortest[name] / shortest["plain"],
                "difference": difference[name],
            }
            for name in IMPLEMENTATIONS
        ]
    return records


def peak_beyond_gradient(
    implementation: str, positions: int, vocabulary: int, width: int, cross_entropy: bool = False
) -> int:
    """Measure the peak memory of an implementation in a separate process.

    Args:
        implementation: one of ``IMPLEMENTATIONS``.
        positions: number of hidden states.
        vocabulary: number of tokens.
        width: width of hidden states and embeddings.
        cross_entropy: compute cross-entropy too.

    Returns:
        Peak minus the gradient of the output layer's weight, in bytes.

    Raises:
        OSError: the system is not Linux.
    """
    gradient = vocabulary * width * torch.float32.itemsize
    peak: int = run_fresh(_peak, implementation, positions, vocabulary, width, cross_entropy)
    return peak - gradient


def _pass(implementation: Implementation, inputs: Inputs, cross_entropy: bool) -> list[Tensor]:
    """Return embeddings and gradients."""
    leaves = (inputs.hidden, inputs.weight, inputs.bias)
    y, loss = implementation(inputs, cross_entropy)
    value = (y * inputs.grad).sum()
    return [y.detach(), *torch.autograd.grad(value if loss is None else value + loss, leaves)]


def _peak(name: str, positions: int, vocabulary: int, width: int, cross_entropy: bool) -> int:
    # Loads libraries before the measurement.
    _pass(IMPLEMENTATIONS[name], Inputs(*_WARM_SIZES), cross_entropy)
    inputs = Inputs(positions, vocabulary, width)
    return peak_growth(lambda: _pass(IMPLEMENTATIONS[name], inputs, cross_entropy))


def _distance(results: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(results, others, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: command line. Default: that of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.expected_embedding", description=__doc__)
    parser.add_argument("--positions", type=int, default=MADE_UP_SIZES[0], help="hidden states; default: %(default)s")
    parser.add_argument(
        "--vocabulary", type=int, default=MADE_UP_SIZES[1], help="number of tokens; default: %(default)s"
    )
    parser.add_argument("--width", type=int, default=MADE_UP_SIZES[2], help="width of vectors; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="timings, of which the shortest counts; default: 5")
    parser.add_argument("--threads", type=int, default=None, help="threads for times; default: PyTorch's")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    for name in ("positions", "vocabulary", "width", "repeats", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)

    setting: Record = {
        "positions": options.positions,
        "vocabulary": options.vocabulary,
        "width": options.width,
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()), flush=True)
    records = compare_implementations(options.positions, options.vocabulary, options.width, options.repeats)
    print(table(records, COLUMNS))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"setting": setting, "implementations": records}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
