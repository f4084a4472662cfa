"""`make parity` compares with bert-score on the model that it is given, and fails where scores differ."""

import re

import pytest

from examples.research import parity
from tests.support.models import save_tiny_model

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.usefixtures("padding_is_masked", "corpus"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("family", [None, "roberta"])
def test_scores_agree(family, minilm, tmp_path, capsys):
    model = minilm if family is None else save_tiny_model(family, tmp_path / "model")

    assert parity.main([str(model), "--num-layers", "2", "--pairs", "8", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    compared = re.findall(r"^([a-z ]+?)  .* \d\.\de-\d\d$", printed, re.MULTILINE)
    assert compared == ["one reference", "two references", "idf weights"]
    assert printed.endswith("All scores agree to 1e-6.\n")


def test_a_difference_is_an_error(minilm, capsys, monkeypatch):
    scores = parity.peer_scores
    monkeypatch.setattr(parity, "peer_scores", lambda *texts, **settings: scores(*texts, **settings) + 2e-6)

    assert parity.main([minilm, "--num-layers", "2", "--pairs", "2", "--device", "cpu"]) == 1
    assert "differ" in capsys.readouterr().out
