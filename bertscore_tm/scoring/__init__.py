"""Token vectors in, scores of texts out: token weights, corpora, rescaling, alignments, warnings and signatures.

Knows texts and the frozen encoder; knows neither torchmetrics, ranks nor Lightning.
"""
