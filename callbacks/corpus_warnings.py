"""Show warnings about scored texts once per training, although every validation repeats them with another count."""

import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from bertscore_tm.scoring.warnings import CORPUS_WARNINGS


@contextmanager
def warn_once(seen: set[str]) -> Generator[None, None, None]:
    """Ignore corpus warnings whose patterns are in ``seen``, and add the patterns of the shown ones to it.

    Python's own filter compares whole messages, so it would show a warning again when its count changes.
    """
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        pattern = _find_pattern(str(warning.message))
        if pattern in seen:
            continue
        # Keep the line that the warning points to.
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if pattern is not None:
            seen.add(pattern)


def _find_pattern(message: str) -> str | None:
    """Return the pattern of a corpus warning, or ``None`` for any other message."""
    for pattern in CORPUS_WARNINGS:
        if re.match(pattern, message):
            return pattern
    return None
