"""Texts of the files that the commands score."""

from tests.support.texts import real_pairs

COUNT = 6


def few_pairs():
    """Short texts: most of these tests' time is the model's."""
    return real_pairs(COUNT, words=16)
