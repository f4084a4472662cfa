"""The signature: equal only where the numbers are."""

from itertools import combinations

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.encoder import model as model_module
from bertscore_tm.functional import rank_candidates
from bertscore_tm.scoring.settings import ScoreSettings

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
    ranked = [rank_candidates(CANDIDATES, **{"references": REFERENCES, "encoder": encoder, **one}) for one in settings]
    for a, b in combinations(ranked, 2):
        assert not torch.equal(a.scores[0], b.scores[0])
        assert a.signature != b.signature
    again = rank_candidates(CANDIDATES, REFERENCES, encoder, weights=[[2.0, 1.0]])
    assert again.signature == ranked[4].signature
    consensus = rank_candidates(CANDIDATES, encoder=encoder, references_reduce="max")
    assert consensus.signature == ranked[5].signature


@pytest.mark.parametrize("native", [torch.bfloat16, None])
def test_automatic_precision_names_that_of_the_device(minilm, monkeypatch, native):
    monkeypatch.setattr(model_module, "fast_half_precision", lambda device: native if device.type == "cpu" else None)
    automatic = FrozenEncoder(minilm, num_layers=1, dtype="auto", device="cpu")
    used = str(automatic.encode(["a cat"]) and automatic.backbone("cpu").dtype).removeprefix("torch.")
    assert automatic.signature()["dtype"] == f"auto/{used}"
    assert ScoreSettings.create(automatic).signature()["dtype"] == f"auto/{used}"
    # A metric runs where it is, not where its encoder would.
    elsewhere = FrozenEncoder(minilm, num_layers=1, dtype="auto", device="meta")
    assert elsewhere.signature()["dtype"] == "auto/float32"
    assert BERTScore(elsewhere).signature()["dtype"] == f"auto/{used}"


def test_f1_to_choose_by_is_named(encoder):
    metric = BERTScore(encoder)
    assert metric.for_selection().signature() != metric.signature() == BERTScore(encoder).signature()
