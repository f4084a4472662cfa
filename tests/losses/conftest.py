"""Fixtures of the losses' tests."""

import pytest


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A baseline table of one's own."""
    path = tmp_path_factory.mktemp("baseline") / "table.csv"
    path.write_text("LAYER,P,R,F\n" + "".join(f"{layer},.{layer}1,.{layer}2,.{layer}3\n" for layer in range(6)))
    return path


@pytest.fixture
def short(pairs):
    """Real pairs, cut after a few words, as the tiny models have few positions."""
    return [[" ".join(text.split()[: 4 + i % 9]) for i, text in enumerate(side)] for side in pairs]
