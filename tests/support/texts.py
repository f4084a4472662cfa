"""Real texts: summaries of docstrings as candidates, the texts that they summarise as references."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

from examples import docstrings

ROOT = Path(__file__).resolve().parents[2]


@cache
def _stdlib_pairs() -> list[tuple[str, str]]:
    """Return summaries and documents of the standard library.

    Reading it takes 3 s of every process, so that they are kept in a file, which pytest's own cache is cleared with.
    """
    version = sha256(f"{sys.version} {Path(docstrings.__file__).read_text(encoding='utf-8')}".encode()).hexdigest()
    path = ROOT / ".pytest_cache" / f"stdlib_pairs_{version[:16]}.json"
    if not path.exists():
        pairs = [(pair.summary, pair.document) for pair in docstrings.collect_pairs((), include_stdlib=True)]
        path.parent.mkdir(exist_ok=True)
        # Named by the process, as the workers of a parallel run write at once.
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(pairs), encoding="utf-8")
        part.replace(path)
    return [(summary, document) for summary, document in json.loads(path.read_text(encoding="utf-8"))]


def real_pairs(count: int) -> tuple[list[str], list[str]]:
    """Return candidates and references: summaries of docstrings, and the first 30 words of what they summarise."""
    pairs = _stdlib_pairs()
    chosen = pairs[:: len(pairs) // count][:count]
    return [summary for summary, _ in chosen], [" ".join(document.split()[:30]) for _, document in chosen]


def several_references(references: list[str]) -> list[list[str]]:
    """Return one to three references per candidate, the first of them the right one."""
    count = len(references)
    return [[references[(i + k) % count] for k in range(1 + i % 3)] for i in range(count)]
