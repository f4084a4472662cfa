"""Warnings about scored texts, which every validation would repeat with another count."""

import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from bertscore_tm.scoring.warnings import CORPUS_WARNINGS


@contextmanager
def warn_once(seen: set[str]) -> Generator[None, None, None]:
    """Ignore warnings about texts of the kinds in ``seen``, with any count, and add the new kinds to it."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        kind = next((pattern for pattern in CORPUS_WARNINGS if re.match(pattern, str(warning.message))), None)
        if kind is None or kind not in seen:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if kind is not None:
            seen.add(kind)
