"""Fixtures of the callbacks' tests."""

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture(scope="module")
def pairs():
    """Real pairs, cut short: alignments of long texts take long to draw."""
    from tests.support.texts import real_pairs

    return real_pairs(240, words=8)


@pytest.fixture(scope="module")
def shallow(minilm):
    """The real encoder, two layers of it."""
    from bertscore_tm import FrozenEncoder
    from tests.support.lightning_runs import LAYER

    return FrozenEncoder(minilm, num_layers=LAYER)
