"""Benchmarks of the metric: memory of its state, traffic between ranks, and encoded texts.

    python -m examples.benchmarks.metric [memory traffic epochs collection] [--pairs N] [--json FILE]

Figures are in examples/benchmarks/README.md.
"""
