"""Fixture of the tests of the package as a whole."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread):
    """The models of these tests are small."""
