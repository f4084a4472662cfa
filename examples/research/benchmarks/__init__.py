"""Benchmarks of speed and memory, compared with the packages that this one replaces.

    python -m examples.research.benchmarks [scoring validation loss memory] [--rounds N] [--threads N] [--pairs N]

RESULTS.md documents the parts and the measured figures.
"""
