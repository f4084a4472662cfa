"""The signature: equal only where the numbers are."""

from itertools import combinations

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.encoder import model as model_module
from bertscore_tm.functional import rank_candidates
from bertscore_tm.scoring.settings import ScoreSettings
from tests.support.models import tiny_model

CANDIDATES, REFERENCES = [["a cat sat", "rain", "a dog"]], [["the cat sat", "it rains"]]


def test_rankings_of_other_scores_have_other_signatures(encoder):
    settings = [
        {},
        {"component": "recall"},
        {"references_reduce": "max"},
        {"weights": [[1, 2]]},
        {"weights": [[2, 1]]},
        {"references": None},
        {"references": None, "weights": [[1, 2, 3]]},
    ]
    usual = {"references": REFERENCES, "encoder": encoder}

    ranked = [rank_candidates(CANDIDATES, **usual | options) for options in settings]

    for a, b in combinations(ranked, 2):
        assert not torch.equal(a.scores[0], b.scores[0])
        assert a.signature != b.signature


def test_rankings_of_equal_scores_have_equal_signatures(encoder):
    weighted = rank_candidates(CANDIDATES, REFERENCES, encoder, weights=[[2, 1]])
    consensus = rank_candidates(CANDIDATES, encoder=encoder)

    with_fractions = rank_candidates(CANDIDATES, REFERENCES, encoder, weights=[[2.0, 1.0]])
    without_references_to_reduce = rank_candidates(CANDIDATES, encoder=encoder, references_reduce="max")

    assert with_fractions.signature == weighted.signature
    assert without_references_to_reduce.signature == consensus.signature


@pytest.mark.parametrize(("native", "used"), [(torch.bfloat16, "bfloat16"), (None, "float32")])
def test_automatic_precision_names_that_of_the_device(monkeypatch, native, used):
    precisions = {"cpu": native}
    monkeypatch.setattr(model_module, "fast_half_precision", lambda device: precisions.get(device.type))
    automatic = FrozenEncoder(*tiny_model("bert"), num_layers=1, dtype="auto", device="cpu")
    # A metric runs where it is, not where its encoder would.
    elsewhere = FrozenEncoder(*tiny_model("bert"), num_layers=1, dtype="auto", device="meta")

    automatic.encode(["a cat"])

    assert automatic.backbone("cpu").dtype == getattr(torch, used)
    assert automatic.signature()["dtype"] == f"auto/{used}"
    assert ScoreSettings.create(automatic).signature()["dtype"] == f"auto/{used}"
    assert elsewhere.signature()["dtype"] == "auto/float32"
    assert BERTScore(elsewhere).signature()["dtype"] == f"auto/{used}"


def test_f1_to_choose_by_is_named(encoder):
    metric = BERTScore(encoder)

    selecting = metric.for_selection()

    assert selecting.signature() != metric.signature()
    assert metric.signature() == BERTScore(encoder).signature()
