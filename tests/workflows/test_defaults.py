"""Public functions without optional arguments equal those with the documented defaults, on a small roberta-large."""

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, Report, align, bert_score, rank_candidates, score_matrix
from bertscore_tm.compat.torchmetrics import bert_score as torchmetrics_score
from bertscore_tm.losses import linear_expected_embedding, softmax_relaxation
from tests.support.models import tiny_model

TEXTS = ["a cat sat on the mat", "the dog ran home"]
REFERENCES = ["the cat sat", "a dog ran"]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def score_english(encoder=None):
    return bert_score(TEXTS, REFERENCES, encoder or FrozenEncoder.for_language("en"))["f1"].tolist()


CALLS = {
    "for_language": score_english,
    "bert_score": lambda *encoder: bert_score(TEXTS, REFERENCES, *encoder)["f1"].tolist(),
    "score_matrix": lambda *encoder: score_matrix(TEXTS, *([TEXTS, *encoder] if encoder else []))["f1"].tolist(),
    "rank_candidates": lambda *encoder: rank_candidates([TEXTS], *([None, *encoder] if encoder else [])).best,
    "align": lambda *encoder: str(align(TEXTS[0], REFERENCES[0], *encoder)),
    "from_texts": lambda *encoder: Report.from_texts({"system": TEXTS}, REFERENCES, *encoder).to_html(),
}


@pytest.fixture
def listed_model(tmp_path, monkeypatch):
    """A folder that is found by the name of the default model, with as many layers."""
    model, tokenizer = tiny_model("roberta", 24)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "roberta-large")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("listed_model")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_default_encoder_is_roberta_large_at_its_tuned_layer(call):
    assert call() == call(FrozenEncoder("roberta-large", num_layers=17))


@pytest.mark.usefixtures("listed_model")
def test_the_drop_in_uses_the_last_layer_of_its_default_model():
    encoder = FrozenEncoder("roberta-large", num_layers=24, exclude_special_tokens=True)
    expected = bert_score(TEXTS, REFERENCES, encoder)["f1"]
    assert torchmetrics_score(TEXTS, REFERENCES)["f1"].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_relaxations_are_the_softmax_by_default():
    torch.manual_seed(0)
    hidden, weight, table = torch.randn(2, 3, 4), torch.randn(7, 4), torch.randn(7, 5)
    probabilities = (hidden @ weight.T).softmax(-1)  # (texts, tokens, vocabulary)
    torch.testing.assert_close(softmax_relaxation(hidden @ weight.T), probabilities)
    expected = linear_expected_embedding(hidden, weight, table)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(expected, probabilities @ table)


def test_an_alignment_of_the_metric_is_that_of_the_function(encoder):
    alignment = BERTScore(encoder).align(TEXTS[0], REFERENCES[0])
    assert str(alignment) == str(align(TEXTS[0], REFERENCES[0], encoder))
