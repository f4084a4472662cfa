"""Measure speed and memory of this package, bert-score and torchmetrics.

python -m examples.research.benchmarks scoring --rounds 3
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from examples.programs.docstrings import collect_pairs, positive
from examples.research.benchmarks import engines, loss, memory, scoring, validation
from examples.research.benchmarks.texts import Options

PARTS = {
    "scoring": scoring.measure,
    "validation": validation.measure,
    "loss": loss.measure,
    "memory": memory.measure,
    "engines": engines.measure,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts, and print a line per figure."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.research.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", default="all", choices=[*PARTS, "all"], help="parts to measure")
    parser.add_argument("--pairs", type=positive, help="pairs or targets; default: those of each part")
    parser.add_argument("--rounds", type=positive, default=5, help="timings of each implementation")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="torch threads")
    options = parser.parse_args(arguments)
    texts = [(" ".join(pair.document.split()[:30]), pair.summary) for pair in collect_pairs([])]
    settings = Options(options.rounds, options.threads, options.pairs, texts)
    # Engines are not among the tools of development: make engines.
    parts = [name for name in PARTS if name != "engines"] if "all" in options.parts else options.parts
    for name in parts:
        for figure in PARTS[name](settings):
            print(figure, flush=True)


if __name__ == "__main__":
    main()
