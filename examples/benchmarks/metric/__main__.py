"""Command that measures the metric, prints tables and writes the figures to a file."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from examples.benchmarks.encoders import CountingEncoder, packaged_model
from examples.benchmarks.metric import collection, epochs, memory, traffic
from examples.benchmarks.metric.feeding import KINDS
from examples.benchmarks.tables import Record, table
from examples.docstrings import DocstringPair, collect_pairs

_LAYER = 5
_NUM_EPOCHS = 3
_FEWEST_PAIRS = 20


def measure_memory(num_pairs: int) -> list[Record]:
    """Measure how the state grows, pair by pair (with a tenth of the pairs) and in batches of 32.

    Args:
        num_pairs: number of generated pairs.

    Returns:
        A record for each kind of metric, with and without indices, and batch size.
    """
    return [
        memory.growth_of_state(kind, indices, batch_size, size)
        for kind in ("mean", "none", "idf")
        for indices in (False, True)
        for batch_size, size in ((1, num_pairs // 10), (32, num_pairs))
    ]


def measure_traffic(num_pairs: int) -> list[Record]:
    """Count what two ranks exchange in ``compute``.

    Args:
        num_pairs: number of generated pairs of both ranks together; a tenth of them is measured too.

    Returns:
        A record for each kind of metric (some also with indices) and number of pairs.
    """
    kinds = [*((kind, False) for kind in KINDS), ("none", True), ("idf", True)]
    sizes = (num_pairs // 10, num_pairs)
    return [record for kind, indices in kinds for record in traffic.traffic_of_compute(kind, indices, sizes)]


def measure_epochs(num_pairs: int, repeats: int) -> list[Record]:
    """Validate in three epochs with changing candidates, and in a fourth with those of the third.

    Args:
        num_pairs: number of real pairs.
        repeats: number of timings.

    Returns:
        A record for each epoch.
    """
    pairs = _pairs(num_pairs)
    candidates = epochs.changing_candidates(pairs, _NUM_EPOCHS)
    encoder = CountingEncoder(packaged_model(), num_layers=_LAYER)
    return epochs.run_epochs(encoder, [*candidates, candidates[-1]], [pair.summary for pair in pairs], repeats)


def measure_collection(num_pairs: int, repeats: int) -> list[Record]:
    """Compare metrics in a collection with the same metrics alone.

    Args:
        num_pairs: number of real pairs.
        repeats: number of timings.

    Returns:
        A record for each arrangement.
    """
    pairs = _pairs(num_pairs)
    [candidates] = epochs.changing_candidates(pairs, 1)
    return collection.compare_collection(packaged_model(), candidates, [pair.summary for pair in pairs], repeats)


@dataclass(frozen=True)
class Measurement:
    """One part of the benchmark.

    Args:
        heading: title of the table.
        measure: function of the number of pairs, and of the number of timings if ``timed``; returns the records.
        pairs: default number of pairs.
        columns: columns of the table, with their formats.
        timed: whether it measures times.
    """

    heading: str
    measure: Callable[..., list[Record]]
    pairs: int
    columns: Mapping[str, str]
    timed: bool = False


MEASUREMENTS = {
    "memory": Measurement("growth of state and process, in bytes", measure_memory, 200_000, memory.COLUMNS),
    "traffic": Measurement("what a rank of two exchanges in compute", measure_traffic, 100_000, traffic.COLUMNS),
    "epochs": Measurement("equal references, cached or not", measure_epochs, 400, epochs.COLUMNS, timed=True),
    "collection": Measurement("the same pairs for all", measure_collection, 400, collection.COLUMNS, timed=True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: command line. Default: that of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks.metric", description=__doc__)
    parser.add_argument(
        "measurements", nargs="*", metavar="MEASUREMENT", help=f"{', '.join(MEASUREMENTS)}; default: all"
    )
    sizes = ", ".join(f"{measurement.pairs:,} for {name}" for name, measurement in MEASUREMENTS.items())
    parser.add_argument("--pairs", type=int, default=None, help=f"pairs to measure with; default: {sizes}")
    parser.add_argument("--repeats", type=int, default=3, help="timings, of which the shortest counts; default: 3")
    parser.add_argument("--threads", type=int, default=None, help="threads of the real encoder; default: PyTorch's")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    for name in options.measurements:
        if name not in MEASUREMENTS:
            parser.error(f"{name!r} is not one of {', '.join(MEASUREMENTS)}")
    if options.pairs is not None and options.pairs < _FEWEST_PAIRS:
        parser.error(f"--pairs must be at least {_FEWEST_PAIRS}, got {options.pairs}")
    for name in ("repeats", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)

    machine: Record = {
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    found: dict[str, Record | list[Record]] = {"machine": machine}
    for name in options.measurements or MEASUREMENTS:
        measurement = MEASUREMENTS[name]
        num_pairs = measurement.pairs if options.pairs is None else options.pairs
        records = measurement.measure(num_pairs, *((options.repeats,) if measurement.timed else ()))
        print(f"\n{name}: {measurement.heading}\n{table(records, measurement.columns)}", flush=True)
        found[name] = records
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@cache
def _stdlib_pairs() -> list[DocstringPair]:
    return collect_pairs((), include_stdlib=True)


def _pairs(count: int) -> list[DocstringPair]:
    """Return docstrings of the standard library, evenly spaced over its modules."""
    pairs = _stdlib_pairs()
    if count > len(pairs):
        raise ValueError(f"the standard library's docstrings give {len(pairs)} pairs, not {count}: ask for fewer")
    return pairs[:: len(pairs) // count][:count]


if __name__ == "__main__":
    main()
