"""Fixtures of trainings."""

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture(scope="module")
def pairs():
    """Real pairs, cut short: alignments of long texts take long to draw."""
    from tests.support.texts import real_pairs

    return real_pairs(240, words=8)


@pytest.fixture(scope="session")
def encoder():
    """A tiny random model, because most of these tests are about what is done with scores."""
    from tests.support.soft_predictions import tiny

    return tiny("bert", "float32")


@pytest.fixture(scope="module")
def shallow(minilm):
    """The real encoder, two layers of it."""
    from bertscore_tm import FrozenEncoder
    from tests.support.lightning_runs import LAYER

    return FrozenEncoder(minilm, num_layers=LAYER)
