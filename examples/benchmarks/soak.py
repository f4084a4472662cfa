"""Soak test: constant memory and correct scores over many pairs and training steps.

The metric is updated in epochs, as in training, with the same references and new candidates. A second metric with
reduction="none" keeps all pairs, with 12 bytes per pair. Then a small generator trains with the loss on new texts. The
command exits with status 1 if memory grows or a score is wrong. Resident memory is read from /proc, on Linux only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.core.memory import return_freed_memory
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.benchmarks.encoders import packaged_model
from examples.benchmarks.peak_memory import short_texts
from examples.benchmarks.processes import resident_bytes
from examples.benchmarks.tables import Record, table
from examples.docstrings import collect_pairs

__all__ = ["COLUMNS", "LIMIT_MB", "NUM_READINGS", "growth_mb", "main", "soak_loss", "soak_metric"]

# What is kept of each pair or step must show: the two texts of each pair, some 200 bytes, would take 36 MB from the
# first tenth of 200,000 pairs on, the references' vectors of each step, some 60 kB, 110 MB from that of 2,000 steps.
# What may show: the scores that reduction="none" keeps (2 MB), and the kernels that oneDNN, the library beneath torch,
# makes for each new shape of a batch and keeps until they are 1,024 (ONEDNN_PRIMITIVE_CACHE_CAPACITY).
LIMIT_MB = 24.0

COLUMNS = {"part": "", "done": ",", "resident_mb": ".1f", "growth_mb": "+.1f", "seconds": ".0f"}

# As many epochs has the metric.
NUM_READINGS = 20
# References of an epoch, its candidates, and what trains: seeds of one never come again in another.
_REFERENCES, _CANDIDATES, _TRAINING = 0, 1_000_000_000, 2_000_000_000
_BATCH_SIZE = 64
_NUM_SAMPLED = 1_000
_TOLERANCE = 1e-5
_MEGABYTE = 1e6

_ROWS, _POSITIONS, _FEATURES = 4, 8, 32


class _Readings:
    """Resident memory of this process while a part of the test runs, printed as it is read."""

    def __init__(self, part: str, total: int) -> None:
        self.records: list[Record] = []
        self._part = part
        self._every = max(total // NUM_READINGS, 1)
        self._total = total
        self._began = time.perf_counter()

    def due(self, done: int) -> bool:
        """Tell whether to read memory when so much is done."""
        return done % self._every == 0 or done == self._total

    def read(self, done: int) -> None:
        """Read memory."""
        # What is free already, and would be given back with the next batches, is in use no more.
        return_freed_memory()
        resident = resident_bytes() / _MEGABYTE
        self.records.append(
            {
                "part": self._part,
                "done": done,
                "resident_mb": resident,
                "growth_mb": self._growth(resident, done),
                "seconds": time.perf_counter() - self._began,
            }
        )
        shown = table(self.records, COLUMNS).splitlines()
        print("\n".join(shown if len(shown) == 2 else shown[-1:]), flush=True)

    def _growth(self, resident: float, done: int) -> float | None:
        """What came after the first tenth, in which whatever is loaded or kept once takes its place."""
        if done * 10 < self._total:
            return None
        first = next((record["resident_mb"] for record in self.records if record["growth_mb"] is not None), resident)
        assert isinstance(first, float)
        return resident - first


def growth_mb(readings: Sequence[Record]) -> float:
    """Return by how much memory has grown from the first tenth to the end.

    Args:
        readings: as :func:`soak_metric` and :func:`soak_loss` return them.

    Returns:
        Megabytes; negative where there is less at the end.

    Example:
        >>> growth_mb([{"growth_mb": None}, {"growth_mb": 0.0}, {"growth_mb": 1.5}])
        1.5
    """
    growth = readings[-1]["growth_mb"]
    assert isinstance(growth, float)
    return growth


def soak_metric(encoder: FrozenEncoder, words: Sequence[str], pairs: int) -> tuple[list[Record], list[str]]:
    """Send made-up pairs through the metric, epoch after epoch, and check the scores in the end.

    Args:
        encoder: the encoder.
        words: what texts are made of.
        pairs: how many pairs, in twenty epochs.

    Returns:
        Resident memory after each epoch; and which of these does not hold, in words: the epochs' means together are the
        mean of all pairs, and the last pairs have the scores that the function gives them.
    """
    epoch_size = max(pairs // NUM_READINGS, 1)
    metric, every_pair = BERTScore(encoder), BERTScore(encoder, reduction="none")
    readings = _Readings("metric", pairs)
    sums = torch.zeros(3, dtype=torch.float64)
    for start in range(0, pairs, epoch_size):
        size = min(epoch_size, pairs - start)
        for candidates, references in _batches(words, start, size):
            # Encoded once for both.
            metric.update(candidates, references)
            every_pair.update(candidates, references)
        sums += size * torch.stack([*metric.compute().values()]).double()
        metric.reset()
        readings.read(start + size)
    kept = torch.stack([*every_pair.compute().values()]).double()

    wrong = []
    if kept.shape[1] != pairs:
        wrong.append(f"the metric kept {kept.shape[1]:,} pairs, not {pairs:,}")
    difference = float((sums / pairs - kept.mean(1)).abs().max())
    if not difference < _TOLERANCE:
        wrong.append(f"the mean of the epochs differs from that of all pairs by {difference:.2e}")
    last = [pair for batch in _batches(words, start, size) for pair in zip(*batch, strict=True)][-_NUM_SAMPLED:]
    candidates, references = (list(texts) for texts in zip(*last, strict=True))
    fresh = bert_score(candidates, references, encoder)
    anew = torch.stack([fresh[name] for name in ("precision", "recall", "f1")]).double()
    difference = float((anew - kept[:, -len(last) :]).abs().max())
    if not difference < _TOLERANCE:
        wrong.append(f"scores of the last {len(last):,} pairs differ from the function's by {difference:.2e}")
    return readings.records, wrong


def soak_loss(encoder: FrozenEncoder, words: Sequence[str], steps: int) -> tuple[list[Record], list[str]]:
    """Train a small generator against made-up texts, by turns from logits and from hidden states.

    Args:
        encoder: the encoder.
        words: what texts are made of.
        steps: how many training steps.

    Returns:
        Resident memory at twenty times; and in words the first step of which the loss or a weight was not finite.
    """
    loss = SoftBERTScoreLoss(encoder)
    vocabulary = encoder.tokenizer.vocab_size
    torch.manual_seed(0)
    embedding, head = nn.Embedding(vocabulary, _FEATURES), nn.Linear(_FEATURES, vocabulary)
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=1e-3)
    readings = _Readings("loss", steps)
    wrong: list[str] = []
    for step in range(1, steps + 1):
        texts = short_texts(words, _ROWS, _TRAINING + step)
        hidden = embedding(torch.randint(vocabulary, (_ROWS, _POSITIONS)))
        value: Any = loss(head(hidden), texts) if step % 2 else loss.forward_hidden(hidden, head, texts)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        number = value.item()
        if not wrong and not (math.isfinite(number) and bool(head.weight.detach().sum().isfinite())):
            wrong.append(f"in training step {step:,} the loss was {number}, or left weights that are not finite")
        if readings.due(step):
            readings.read(step)
    return readings.records, wrong


def main(arguments: Sequence[str] | None = None) -> dict[str, list[Record]]:
    """Run the command.

    Args:
        arguments: command line. Default: that of the process.

    Returns:
        The readings of each part.

    Raises:
        SystemExit: memory has grown by more than the limit, or a number is wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=200_000, help="pairs for the metric; default: 200,000")
    parser.add_argument("--steps", type=int, default=2_000, help="training steps; default: 2,000")
    parser.add_argument("--limit-mb", type=float, default=LIMIT_MB, help=f"growth allowed; default: {LIMIT_MB:g}")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; default: 1")
    parser.add_argument("--words", type=Path, metavar="FILE", help="text to take words from; default: docstrings")
    parser.add_argument("--model", default=None, help="encoder; default: the packaged MiniLM")
    parser.add_argument("--num-layers", type=int, default=1, help="its layer; default: 1, as more only take longer")
    parser.add_argument("--json", "--output", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args(arguments)
    for name in ("pairs", "steps", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    torch.set_num_threads(options.threads)
    setting: Record = {
        "pairs": options.pairs,
        "steps": options.steps,
        "limit_mb": options.limit_mb,
        "layer": options.num_layers,
        "threads": options.threads,
        "processors": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()), flush=True)
    words = _words(options.words)
    encoder = FrozenEncoder(options.model or packaged_model(), num_layers=options.num_layers)
    found: dict[str, list[Record]] = {}
    wrong: list[str] = []
    for part, soak, count in (("metric", soak_metric, options.pairs), ("loss", soak_loss, options.steps)):
        found[part], errors = soak(encoder, words, count)
        growth = growth_mb(found[part])
        if growth > options.limit_mb:
            errors = [*errors, f"memory has grown by {growth:.1f} MB, more than {options.limit_mb:g}"]
        wrong += [f"{part}: {error}" for error in errors]
    if options.json is not None:
        content = {"setting": setting, "readings": found, "wrong": wrong}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        raise SystemExit(1)
    print(f"flat, and right: at most {max(map(growth_mb, found.values())):+.1f} MB")
    return found


def _batches(words: Sequence[str], start: int, size: int) -> Iterator[tuple[list[str], list[str]]]:
    """The pairs of an epoch: as many of the same references as are asked for, and candidates of its own."""
    for offset in range(0, size, _BATCH_SIZE):
        count = min(_BATCH_SIZE, size - offset)
        yield (
            short_texts(words, count, _CANDIDATES + start + offset),
            short_texts(words, count, _REFERENCES + offset),
        )


def _words(path: Path | None) -> list[str]:
    if path is not None:
        text = path.read_text(encoding="utf-8")
    else:
        found = collect_pairs([], include_stdlib=True)
        text = " ".join(f"{pair.summary} {pair.document}" for pair in found)
    return sorted({*text.split()})


if __name__ == "__main__":
    main()
