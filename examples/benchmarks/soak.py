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

# Less than a leak takes after the first tenth: the texts of each pair (200 bytes) take 36 MB in 200,000 pairs, the
# references' vectors of each step (60 kB) 110 MB in 2,000 steps. More than expected: 2 MB of scores kept by
# reduction="none", and up to 1,024 kernels that oneDNN compiles per batch shape (ONEDNN_PRIMITIVE_CACHE_CAPACITY).
LIMIT_MB = 24.0

COLUMNS = {"part": "", "done": ",", "resident_mb": ".1f", "growth_mb": "+.1f", "seconds": ".0f"}

# Also the number of epochs of the metric.
NUM_READINGS = 20
# First seeds of references, candidates and training texts, far apart so that none repeats.
_REFERENCES, _CANDIDATES, _TRAINING = 0, 1_000_000_000, 2_000_000_000
_BATCH_SIZE = 64
_NUM_SAMPLED = 1_000
_TOLERANCE = 1e-5
_MEGABYTE = 1e6

_ROWS, _POSITIONS, _FEATURES = 4, 8, 32


class _Readings:
    """Readings of resident memory during a part of the test, each printed at once."""

    def __init__(self, part: str, total: int) -> None:
        self.records: list[Record] = []
        self._part = part
        self._every = max(total // NUM_READINGS, 1)
        self._total = total
        self._began = time.perf_counter()

    def is_due(self, done: int) -> bool:
        """Check whether memory is read after this many pairs or steps."""
        return done % self._every == 0 or done == self._total

    def read(self, done: int) -> None:
        """Read resident memory after this many pairs or steps, and print it."""
        # Freed memory that the next batches would reuse does not count.
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
        """Return the growth since the first tenth, in which everything is loaded; ``None`` before."""
        if done * 10 < self._total:
            return None
        first = next((record["resident_mb"] for record in self.records if record["growth_mb"] is not None), resident)
        assert isinstance(first, float)
        return resident - first


def growth_mb(readings: Sequence[Record]) -> float:
    """Return the growth of memory from the first tenth to the end.

    Args:
        readings: records of :func:`soak_metric` or :func:`soak_loss`.

    Returns:
        Megabytes; negative if memory shrank.

    Example:
        >>> growth_mb([{"growth_mb": None}, {"growth_mb": 0.0}, {"growth_mb": 1.5}])
        1.5
    """
    growth = readings[-1]["growth_mb"]
    assert isinstance(growth, float)
    return growth


def soak_metric(encoder: FrozenEncoder, words: Sequence[str], pairs: int) -> tuple[list[Record], list[str]]:
    """Update the metric with random pairs in twenty epochs, and check the scores at the end.

    Args:
        encoder: the encoder.
        words: words of the texts.
        pairs: number of pairs.

    Returns:
        Resident memory after each epoch; and a sentence for each failed check: the mean of the epochs equals the mean
        of all pairs, and the scores of the last pairs equal those of ``bert_score``.
    """
    epoch_size = max(pairs // NUM_READINGS, 1)
    metric, every_pair = BERTScore(encoder), BERTScore(encoder, reduction="none")
    readings = _Readings("metric", pairs)
    sums = torch.zeros(3, dtype=torch.float64)
    for start in range(0, pairs, epoch_size):
        size = min(epoch_size, pairs - start)
        for candidates, references in _batches(words, start, size):
            # Both share the encoded batch.
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
    """Train a small generator with the loss of random texts, alternately from logits and from hidden states.

    Args:
        encoder: the encoder.
        words: words of the texts.
        steps: number of training steps.

    Returns:
        Resident memory, read twenty times; and a sentence about the first step whose loss or weights are not finite.
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
            wrong.append(f"in training step {step:,} the loss was {number} or a weight became NaN or infinite")
        if readings.is_due(step):
            readings.read(step)
    return readings.records, wrong


def main(arguments: Sequence[str] | None = None) -> dict[str, list[Record]]:
    """Run the command.

    Args:
        arguments: command line. Default: that of the process.

    Returns:
        The readings of each part.

    Raises:
        SystemExit: memory grew by more than the limit, or a score is wrong.
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
    parser.add_argument("--num-layers", type=int, default=1, help="encoder layer; default: 1, the fastest")
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
            errors = [*errors, f"memory grew by {growth:.1f} MB, more than {options.limit_mb:g} MB"]
        wrong += [f"{part}: {error}" for error in errors]
    if options.json is not None:
        content = {"setting": setting, "readings": found, "wrong": wrong}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        raise SystemExit(1)
    print(f"constant memory, correct scores: at most {max(map(growth_mb, found.values())):+.1f} MB")
    return found


def _batches(words: Sequence[str], start: int, size: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield batches of an epoch: the same references in every epoch, new candidates."""
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
