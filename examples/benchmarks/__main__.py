"""Command that compares this package with bert-score and torchmetrics, and writes the ratios to a file."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch

from examples.benchmarks import loss, memory, ranking, scoring, validation
from examples.benchmarks.package import packaged_model
from examples.benchmarks.rounds import Figure, Record, table
from examples.benchmarks.texts import Options, Texts
from examples.docstrings import collect_pairs
from examples.meta_evaluation.readers import read

_ROUNDS = 5
_LAYER = 5

PARTS: dict[str, tuple[str, Callable[[Options], Iterable[Figure]]]] = {
    "scoring": ("scoring texts, against bert-score", scoring.measure),
    "validation": ("the metric in Lightning, against torchmetrics' BERTScore", validation.measure),
    "loss": ("a training step with the loss, against cross-entropy alone", loss.measure),
    "ranking": ("ranking samples by consensus, against bert-score on all pairs", ranking.measure),
    "memory": ("peak memory over the loaded model", memory.measure),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        arguments: command line. Default: that of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"parts to measure: {', '.join(PARTS)}; default: all")
    parser.add_argument("--texts", type=Path, help="JSON lines as examples.meta_evaluation reads; default: docstrings")
    parser.add_argument("--pairs", type=int, help="pairs, samples or targets; default: those of each part")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="timings of each implementation")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch threads")
    parser.add_argument("--model", default=None, help="encoder; default: the packaged MiniLM")
    parser.add_argument("--num-layers", type=int, default=None, help=f"encoder layer; default: {_LAYER} for MiniLM")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown parts {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    for name in ("rounds", "threads", "pairs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    if options.model is not None and options.num_layers is None:
        parser.error("--model requires --num-layers")
    settings = Options(
        rounds=options.rounds,
        threads=options.threads,
        pairs=options.pairs,
        model=options.model or packaged_model(),
        num_layers=options.num_layers or _LAYER,
        texts=_texts(options.texts),
    )
    facts = _facts(settings, options.texts)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    records: dict[str, list[Record]] = {}
    for name in options.parts or PARTS:
        heading, measure = PARTS[name]
        records[name] = []
        for figure in measure(settings):
            records[name].append(figure.record())
            # At once, as a slow machine takes minutes per figure; the table follows.
            print(f"{figure.what}: {median(figure.values):.3g} {figure.unit}".rstrip(), file=sys.stderr, flush=True)
        print(f"\n{name}: {heading}\n{table(records[name])}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"settings": facts, "figures": records}, indent=2) + "\n", encoding="utf-8")


def _texts(path: Path | None) -> Texts:
    if path is not None:
        return list(zip(*read(path).pairs(), strict=True))
    return [(" ".join(pair.document.split()[:30]), [pair.summary]) for pair in collect_pairs([], include_stdlib=True)]


def _facts(options: Options, path: Path | None) -> dict[str, str]:
    packages = ("torch", "transformers", "torchmetrics", "lightning", "bert-score")
    return {
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}, {options.threads} threads",
        "versions": ", ".join(f"{name} {version(name)}" for name in packages) + f", Python {platform.python_version()}",
        "encoder": f"{_name(options.model)}, layer {options.num_layers}",
        "texts": "docstrings of the standard library" if path is None else path.name,
        "rounds": str(options.rounds),
    }


def _name(model: str) -> str:
    return "all-MiniLM-L6-v2" if model == packaged_model() else model


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
