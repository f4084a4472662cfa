"""Warnings about scores, with counts."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from bertscore_tm.utilities.user_warnings import warn_user

__all__ = [
    "CORPUS_WARNINGS",
    "describe_truncation",
    "warn_about_scores",
    "warn_of_truncation",
    "warn_unused",
]

# Patterns of the messages of `warn_about_scores`, with any count.
CORPUS_WARNINGS = (r"\d+ candidates? scored 0 because ", r"\d+ texts? (is|are) longer than \d+ tokens ")


@cache
def warn_unused(name: str, reason: str) -> None:
    """Warn, once per process, that an argument of another package has no effect here, and why."""
    warn_user(f"{name} has no effect: {reason}")


def describe_truncation(num_truncated: int, max_length: int | None, kind: str = "text", source: str = "") -> str:
    """Return the warning that at least one text, or what it is called, of an argument was truncated."""
    origin = f" of {source}" if source else ""
    if num_truncated == 1:
        return f"1 {kind}{origin} is longer than {max_length} tokens and was truncated"
    return f"{num_truncated} {kind}s{origin} are longer than {max_length} tokens and were truncated"


def warn_about_scores(scores: Tensor, num_truncated: int, is_weighted: bool, max_length: int | None) -> None:
    """Warn about candidates with F1 0 at all layers, from scores before rescaling, and about truncated texts."""
    # Real texts have positive similarities, so that an F1 of exactly 0 has one of these reasons.
    num_zero = int((scores[2] == 0).all(0).sum())
    if num_zero:
        weightless = " or has only tokens of weight 0, such as the idf of tokens that occur in every reference"
        noun = "candidate" if num_zero == 1 else "candidates"
        reason = f"the text, or each of its references, is empty{weightless if is_weighted else ''}"
        warn_user(f"{num_zero} {noun} scored 0 because {reason}")
    if num_truncated:
        warn_of_truncation(num_truncated, max_length)


def warn_of_truncation(num_truncated: int, max_length: int | None) -> None:
    """Warn about at least one truncated text."""
    warn_user(f"{describe_truncation(num_truncated, max_length)}; long_text='window' scores whole texts")
