"""What the package costs, measured: memory, bytes on the wire, texts encoded, and times relative to each other.

    python -m examples.benchmarks.metric [memory traffic epochs collection] [--pairs N] [--json FILE]
    python -m examples.benchmarks.expected_embedding [--positions N] [--vocabulary N] [--json FILE]

Each benchmark is a folder or file that runs on its own. Commands and measured figures are in the README beside this
file.
"""
