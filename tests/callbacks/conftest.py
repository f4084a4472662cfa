"""Fixtures of the callbacks' tests."""

from __future__ import annotations

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture(scope="module")
def few(pairs):
    """The examples of the runs."""
    from tests.support.lightning_runs import COUNT

    return tuple(side[:COUNT] for side in pairs)


@pytest.fixture(scope="module")
def short_pairs(pairs):
    """Real pairs, cut short: alignments of long texts take long to draw."""
    return tuple([" ".join(text.split()[:8]) for text in side] for side in pairs)


@pytest.fixture(scope="module")
def shallow(minilm):
    """The real encoder, two layers of it."""
    from bertscore_tm import FrozenEncoder
    from tests.support.lightning_runs import LAYER

    return FrozenEncoder(minilm, num_layers=LAYER)
