"""Command that compares this package with bert-score and torchmetrics.

python -m examples.benchmarks scoring --rounds 3
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from tabulate import tabulate

from examples.benchmarks import backends, loss, memory, scoring, validation
from examples.benchmarks.rounds import Figure
from examples.benchmarks.texts import Options
from examples.docstrings import collect_pairs, positive

PARTS: dict[str, tuple[str, Callable[[Options], Iterator[Figure]]]] = {
    "scoring": ("scoring texts, against bert-score", scoring.measure),
    "small": ("calls with few texts, against bert-score", scoring.measure_small),
    "validation": ("the metric in Lightning, against torchmetrics' BERTScore", validation.measure),
    "loss": ("a training step with the loss, against cross-entropy alone", loss.measure),
    "ranking": ("ranking samples by consensus, against bert-score on all pairs", scoring.measure_ranking),
    "backends": ("products of matrices in float32, by torch's library and by oneDNN", backends.measure),
    "memory": ("peak memory over the loaded model", memory.measure),
}
PACKAGES = ("torch", "transformers", "torchmetrics", "lightning", "bert-score")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts, and print a table of each."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"part to measure: {', '.join(PARTS)}; default: all")
    parser.add_argument("--pairs", type=positive, help="pairs, samples or targets; default: those of each part")
    parser.add_argument("--rounds", type=positive, default=5, help="timings of each implementation")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="torch threads")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    pairs = collect_pairs([])
    texts = [(" ".join(pair.document.split()[:30]), pair.summary) for pair in pairs]
    settings = Options(options.rounds, options.threads, options.pairs, texts)
    facts = {
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}, {options.threads} threads",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES) + f", Python {platform.python_version()}",
        "rounds": str(options.rounds),
    }
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    records: dict[str, list[dict[str, str | float]]] = {}
    for name in options.parts or PARTS:
        heading, measure = PARTS[name]
        records[name] = []
        for figure in measure(settings):
            records[name].append(figure.record())
            # At once, as a slow machine takes minutes per figure; the table follows.
            print(f"{figure.what}: {median(figure.values):.3g} {figure.unit}".rstrip(), file=sys.stderr, flush=True)
        print(f"\n{name}: {heading}", tabulate(records[name], headers="keys", floatfmt=".3g"), sep="\n", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"settings": facts, "figures": records}, indent=2) + "\n", encoding="utf-8")


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
