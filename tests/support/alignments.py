"""Families whose special tokens differ."""

WITH_SPECIALS = (
    "bert",  # with cls and sep
    "roberta",  # with a space in front
    "gpt2",  # without special tokens
    "llama",  # with one before the text
    "t5",  # with one after the text
    "mbart",  # with two after the text
    "xlnet",  # with two after a text that is padded on the left
)
