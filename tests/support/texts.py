"""Real texts: summaries of docstrings as candidates, the texts that they summarise as references."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from examples.programs import docstrings
from examples.programs.docstrings import DocstringPair
from tests.support.markdown_blocks import ROOT


def read_or_make(name: str, make: Callable[[], Any], *sources: str) -> Any:
    """Return what a function makes for JSON, which is written to a file in pytest's cache for later processes.

    It is made again after a change of Python or of the source files of the function.
    """
    code = "".join(Path(source).read_text(encoding="utf-8") for source in sources)
    version = sha256(f"{sys.version} {code}".encode()).hexdigest()
    path = ROOT / ".pytest_cache" / f"{name}_{version[:16]}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        # Named by the process, because the workers of a parallel run write at once.
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(make()), encoding="utf-8")
        part.replace(path)
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def stdlib_pairs() -> list[DocstringPair]:
    """Return summaries and documents of the standard library, which take 3 s to read."""
    pairs = read_or_make(
        "stdlib", lambda: [astuple(pair) for pair in docstrings.collect_pairs(())], docstrings.__file__
    )
    return [DocstringPair(*pair) for pair in pairs]


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
