"""Candidates of different lengths, with references."""

TOLERANCE = 1e-6
LENGTHS = ["cat", "a cat", "a cat sat", "a cat sat on the mat", "a cat sat on the mat and a cat sat on the mat again"]
SEVERAL = [
    ["the cat sat"],
    ["the cat sat", "the cat sat on the mat"],
    ["cats"],
    ["a cat sat on the mat"],
    ["the cat sat"],
]
