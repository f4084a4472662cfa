"""Families whose special tokens differ."""

# With cls and sep; with a space in front; without special tokens; with one before, one and two after, and two after a
# text that is padded on the left.
WITH_SPECIALS = ("bert", "roberta", "gpt2", "llama", "t5", "mbart", "xlnet")
