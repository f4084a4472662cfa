"""Runs that are long enough to be interrupted: their texts, and the comparison of their outputs."""

import re

import pytest

from tests.support.texts import real_pairs

COUNT = 23
CANDIDATES, REFERENCES = real_pairs(COUNT, words=8)
FILES = ["-c", "hyps.txt", "-r", "refs.txt"]
LAYER = ["-l", "2"]
NUMBER = r"\d\.\d{4,6}"
# Items of a step.
SIZE = 4
# Arguments of a command, its output, the name and the number of its items, and how many steps are written.
KILLED = {
    "score": (["score", *FILES, *LAYER, "--idf", "--max-length", "8", "-s"], "out.tsv", "pair", COUNT, 2),
    "rank": (["rank", "samples.jsonl", *LAYER], "out.jsonl", "line", 7, 1),
}


def assert_same_but_last_digits(text, other):
    """Compare two outputs: texts that are encoded together may change the last of the six digits."""
    assert re.sub(NUMBER, "", text) == re.sub(NUMBER, "", other)
    numbers, expected = ([float(x) for x in re.findall(NUMBER, output)] for output in (text, other))
    assert numbers == pytest.approx(expected, abs=2e-6)
