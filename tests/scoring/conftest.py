"""An encoder of all layers and its baseline table."""

from pathlib import Path

import pytest

from bertscore_tm import FrozenEncoder
from bertscore_tm.scoring.baselines import make_baseline
from tests.support.texts import real_pairs

TEXTS = real_pairs(40)[0]


@pytest.fixture(scope="module")
def all_layers(minilm) -> FrozenEncoder:
    """The real encoder with all its layers."""
    return FrozenEncoder(minilm, all_layers=True)


@pytest.fixture(scope="module")
def table(all_layers, tmp_path_factory) -> Path:
    """The table of 30 random pairs."""
    path = tmp_path_factory.mktemp("tables") / "minilm.csv"
    path.write_text(make_baseline(all_layers, TEXTS, 30).to_csv())
    return path
