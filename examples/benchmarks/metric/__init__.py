"""What ``BERTScore`` costs beside its encoder, and how often it makes the encoder work.

    python -m examples.benchmarks.metric [memory traffic epochs collection] [--pairs N] [--json FILE]

Figures are in the README of the folder above.
"""
