"""Fixtures of the pictures' tests."""

import pytest

# Imports of seconds are inside functions, as in the conftest.py above.


@pytest.fixture
def no_open_figures():
    """Pictures do not touch pyplot's figures or settings."""
    import matplotlib
    from matplotlib import pyplot as plt

    settings, figures = dict(matplotlib.rcParams), plt.get_fignums()
    yield
    assert plt.get_fignums() == figures
    assert dict(matplotlib.rcParams) == settings
