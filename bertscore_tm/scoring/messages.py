"""Warnings about scores, with counts, and the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from torch import Tensor

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = [
    "CORPUS_WARNINGS",
    "count_zero",
    "describe_truncation",
    "list_warnings",
    "progress_bar",
    "warn_about_scores",
    "warn_unused",
]

# Patterns of the messages of `list_warnings`, with any count.
CORPUS_WARNINGS = (r"\d+ candidates? scored 0 because ", r"\d+ texts? (is|are) longer than \d+ tokens ")


@cache
def warn_unused(name: str, reason: str) -> None:
    """Warn, once per process, that an argument of another package has no effect here, and why."""
    warn_user(f"{name} has no effect: {reason}")


def count_zero(scores: Tensor) -> Tensor:
    """Count the candidates whose F1 is 0 at all layers, from scores before rescaling, shape (3, layers, candidates)."""
    return (scores[2] == 0).all(0).sum()


def describe_truncation(num_truncated: int, max_length: int | None, kind: str = "text", source: str = "") -> str:
    """Return the warning that at least one text, or what it is called, of an argument was truncated."""
    origin = f" of {source}" if source else ""
    if num_truncated == 1:
        return f"1 {kind}{origin} is longer than {max_length} tokens and was truncated"
    return f"{num_truncated} {kind}s{origin} are longer than {max_length} tokens and were truncated"


def list_warnings(num_zero: int, num_truncated: int, idf: bool, max_length: int | None) -> list[str]:
    """Return the warnings about a scored corpus, each once and with its count.

    Args:
        num_zero: number of candidates with F1 0.
        num_truncated: number of truncated texts.
        idf: whether the tokens are weighted by idf.
        max_length: the length limit in tokens.
    """
    found = []
    # Real texts have positive similarities, so that an F1 of exactly 0 has one of these reasons.
    if num_zero:
        one = num_zero == 1
        reason = f"{'it, or all of its references, is' if one else 'they, or all of their references, are'} empty"
        if idf:
            verb = "has" if one else "have"
            reason += f" or {verb} only tokens of weight 0, such as the idf of tokens that occur in every reference"
        found.append(f"{num_zero} {'candidate' if one else 'candidates'} scored 0 because {reason}")
    if num_truncated:
        found.append(f"{describe_truncation(num_truncated, max_length)}; long_text='window' scores whole texts")
    return found


def warn_about_scores(scores: Tensor, num_truncated: int, is_weighted: bool, max_length: int | None) -> None:
    """Warn about candidates with F1 0, from scores before rescaling, and about truncated texts of a corpus."""
    for message in list_warnings(int(count_zero(scores)), num_truncated, is_weighted, max_length):
        warn_user(message)


@contextmanager
def progress_bar(total: int, enabled: bool, unit: str = "pair") -> Generator[Callable[[int], None], None, None]:
    """Show on standard error how many pairs, or other units, are scored; yields a function to call with each number."""
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, disable=not enabled) as bar:

        def advance(count: int) -> None:
            bar.update(count)

        yield advance
