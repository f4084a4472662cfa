"""Fixtures of trainings."""

import pytest

from tests.support.training_fixtures import pairs, shallow

__all__ = ["pairs", "shallow"]


# Imports of seconds are inside functions, as in the conftest.py above.
@pytest.fixture(scope="session")
def encoder():
    """A tiny random model, because these tests are about what is done with scores."""
    from tests.support.soft_predictions import tiny

    return tiny("bert", "float32")
