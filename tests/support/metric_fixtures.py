"""Encoders and kinds of metrics for several files."""

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture(scope="module")
def encoder(minilm):
    """The real encoder, two layers of it: most of these tests are about what happens around it."""
    from bertscore_tm import FrozenEncoder

    return FrozenEncoder(minilm, num_layers=2)


@pytest.fixture(scope="module")
def every(minilm):
    """All layers of the real encoder."""
    from bertscore_tm import FrozenEncoder

    return FrozenEncoder(minilm, num_layers=6, all_layers=True)


# Its encoders are loaded once for all files.
@pytest.fixture(scope="package")
def workshop(minilm, table):
    """Metrics of every kind, with the expected results."""
    from tests.support.metrics import Workshop

    return Workshop(minilm, table)
