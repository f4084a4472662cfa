"""Public functions without optional arguments equal those with the documented defaults, on a small roberta-large."""

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, Report, align, bert_score, rank_candidates, score_matrix
from bertscore_tm.compat.torchmetrics import bert_score as torchmetrics_score
from bertscore_tm.losses import linear_expected_embedding, softmax_relaxation
from tests.support.models import tiny_model
from tests.support.soft_predictions import normal

TEXTS = ["a cat sat on the mat", "the dog ran home"]
REFERENCES = ["the cat sat", "a dog ran"]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


# Each call takes no argument or an encoder.
CALLS = {
    "bert_score": lambda **encoder: bert_score(TEXTS, REFERENCES, **encoder)["f1"].tolist(),
    "score_matrix": lambda **encoder: score_matrix(TEXTS, **encoder)["f1"].tolist(),
    "rank_candidates": lambda **encoder: rank_candidates([TEXTS], **encoder).best,
    "align": lambda **encoder: str(align(TEXTS[0], REFERENCES[0], **encoder)),
    "from_texts": lambda **encoder: Report.from_texts({"system": TEXTS}, REFERENCES, **encoder).to_html(),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a model that has the name of the default model, and as many layers."""
    folder = tmp_path_factory.mktemp("models")
    for part in tiny_model("roberta", 24):
        part.save_pretrained(folder / "roberta-large")
    return folder


@pytest.fixture
def listed_model(models, monkeypatch):
    """The model is found by its name."""
    monkeypatch.chdir(models)


@pytest.mark.usefixtures("listed_model")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_default_encoder_is_roberta_large_at_its_tuned_layer(call):
    expected = call(encoder=FrozenEncoder("roberta-large", num_layers=17))

    assert call() == expected


@pytest.mark.usefixtures("listed_model")
def test_the_default_encoder_of_english_is_roberta_large():
    expected = FrozenEncoder("roberta-large", num_layers=17).encode(TEXTS).vectors

    assert torch.equal(FrozenEncoder.for_language("en").encode(TEXTS).vectors, expected)


@pytest.mark.usefixtures("listed_model")
def test_the_drop_in_uses_the_last_layer_of_its_default_model():
    encoder = FrozenEncoder("roberta-large", num_layers=24, exclude_special_tokens=True)
    expected = bert_score(TEXTS, REFERENCES, encoder)

    scores = torchmetrics_score(TEXTS, REFERENCES)

    torch.testing.assert_close(scores["f1"], expected["f1"], atol=1e-6, rtol=0)


def test_relaxations_are_the_softmax_by_default():
    hidden, weight, table = normal(2, 3, 4), normal(7, 4, seed=1), normal(7, 5, seed=2)
    logits = hidden @ weight.T  # (texts, tokens, vocabulary)
    probabilities = logits.softmax(-1)

    relaxed = softmax_relaxation(logits)
    embeddings = linear_expected_embedding(hidden, weight, table)

    torch.testing.assert_close(relaxed, probabilities)
    torch.testing.assert_close(embeddings, probabilities @ table)


def test_an_alignment_of_the_metric_is_that_of_the_function(encoder):
    expected = align(TEXTS[0], REFERENCES[0], encoder)

    alignment = BERTScore(encoder).align(TEXTS[0], REFERENCES[0])

    assert str(alignment) == str(expected)
