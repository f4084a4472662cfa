"""Answers of chats."""

import sys

from tests.support.processes import run_process


def test_strip_thoughts_needs_no_heavy_import():
    code = (
        "import sys, bertscore_tm; print(bertscore_tm.strip_thoughts('<think>so</think> yes'), "
        "*sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()))"
    )

    done = run_process(sys.executable, "-c", code)

    assert done.stdout == "yes\n"
