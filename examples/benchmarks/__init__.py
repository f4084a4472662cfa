"""Benchmarks of memory, traffic between ranks, encoded texts and relative times.

    python -m examples.benchmarks.metric [memory traffic epochs collection] [--pairs N] [--json FILE]
    python -m examples.benchmarks.expected_embedding [--positions N] [--vocabulary N] [--json FILE]

Each benchmark is a folder or file with a command. README.md contains all commands and measured figures.
"""
