"""Vectors in, scores of texts out: token weights, whole corpora, rescaling, alignments, warnings and the signature."""
