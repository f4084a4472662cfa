"""Real texts: summaries of docstrings as candidates, the texts that they summarise as references."""

import json
import os
import sys
from collections import Counter
from dataclasses import astuple
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path

from examples.programs import docstrings
from examples.programs.docstrings import DocstringPair
from tests.support.markdown_blocks import ROOT


@cache
def stdlib_pairs() -> list[DocstringPair]:
    """Return summaries and documents of the standard library.

    Reading it takes 3 s of every process, so that they are kept in a file, which pytest's own cache is cleared with.
    """
    version = sha256(f"{sys.version} {Path(docstrings.__file__).read_text(encoding='utf-8')}".encode()).hexdigest()
    path = ROOT / ".pytest_cache" / f"stdlib_{version[:16]}.json"
    if not path.exists():
        pairs = docstrings.collect_pairs(())
        path.parent.mkdir(exist_ok=True)
        # Named by the process, as the workers of a parallel run write at once.
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([astuple(pair) for pair in pairs]), encoding="utf-8")
        part.replace(path)
    return [DocstringPair(*pair) for pair in json.loads(path.read_text(encoding="utf-8"))]


def real_pairs(count: int, words: int | None = None) -> tuple[list[str], list[str]]:
    """Return candidates and references: summaries of docstrings, and the first 30 words of what they summarise.

    Where most of a test's time is the model's, both are cut after fewer ``words``.
    """
    pairs = stdlib_pairs()
    step = len(pairs) // count
    chosen = pairs[::step][:count]
    candidates = [cut(pair.summary, words) for pair in chosen]
    references = [cut(cut(pair.document, 30), words) for pair in chosen]
    return candidates, references


def cut(text: str, words: int | None) -> str:
    """Return the first words of a text, separated by single spaces."""
    return " ".join(text.split()[:words])


def several_references(references: list[str]) -> list[list[str]]:
    """Return one to three references per candidate, the first of them the right one."""
    count = len(references)
    return [[references[(i + k) % count] for k in range(1 + i % 3)] for i in range(count)]


def count_rows(encoder, candidates, references):
    """Number of distinct texts with the same token ids, by their ids."""
    distinct = {*candidates, *chain.from_iterable(references)}
    return Counter(map(tuple, encoder.tokenizer(sorted(distinct)).rows()))
