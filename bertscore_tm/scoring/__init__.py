"""Token vectors in, scores of texts out.

Holds texts as users pass them, token weights, scores of a corpus, rescaling, warnings and signatures. Knows the frozen
encoder, but neither torchmetrics, ranks nor Lightning.
"""
