"""Scores without the special tokens around texts."""

import json
from itertools import chain
from pathlib import Path

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, align, bert_score, rank_candidates
from bertscore_tm.functional import score_matrix
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import last_hidden_state, save_tiny_model, tiny_model
from tests.support.soft_predictions import COMPONENTS, certain

# Texts without tokens are meant here.
pytestmark = pytest.mark.filterwarnings("ignore:.* scored 0 because:UserWarning")
LAYER = 3


@pytest.fixture(scope="module")
def content_encoder(minilm):
    return FrozenEncoder(minilm, num_layers=LAYER, exclude_special_tokens=True)


TEXTS = ["a black cat sat on the mat", "", "hello", " ".join(["the weather is nice"] * 12)]


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"all_layers": True}),
        ("bert", {"max_length": 12, "long_text": "window"}),
        ("bert", {"forward_fn": last_hidden_state}),
        ("mbart", {"max_length": 12, "long_text": "window"}),
        ("t5", {}),
        ("xlnet", {}),
        ("gpt2", {}),
    ],
)
def test_vectors_are_those_of_the_other_tokens(family, options):
    model, tokenizer = tiny_model(family)
    settings = {"num_layers": 2} | options
    with_special = FrozenEncoder(model, tokenizer, **settings)
    without = FrozenEncoder(model, tokenizer, **settings, exclude_special_tokens=True)
    texts = with_special.tokenizer.prepare(TEXTS)
    is_cut = with_special.tokenizer.long_text == "truncate"
    masks = tokenizer(texts, return_special_tokens_mask=True, truncation=is_cut)["special_tokens_mask"]
    content = ~torch.tensor(list(chain(*masks))).bool()
    expected = with_special.encode(TEXTS)

    result = without.encode(TEXTS)

    assert torch.equal(result.vectors, expected.vectors[:, content])
    assert result.texts.ids.tolist() == expected.texts.ids[content.numpy()].tolist()
    assert result.texts.lengths.tolist() == [mask.count(0) for mask in masks]
    assert result.texts.has_content.tolist() == expected.texts.has_content.tolist()


def scores_of_the_loss(encoder, references):
    """Return what predictions score against references, whose gradient is finite."""
    loss = SoftBERTScoreLoss(encoder, reduction="none", matching="max")
    labels = torch.tensor([[7, 8, 9]] * len(references))
    logits = certain(encoder, labels, 5.0).requires_grad_()
    value = loss(logits, references)
    value.sum().backward()
    assert torch.isfinite(logits.grad).all()
    return 1 - value.detach()


@pytest.fixture(params=["bert", "gpt2"])
def without_tokens(request):
    """Encoders for which an empty text has no token: the tokenizer of GPT-2 adds no special tokens."""
    is_excluded = request.param == "bert"
    return FrozenEncoder(*tiny_model(request.param), num_layers=2, exclude_special_tokens=is_excluded)


IDF = [True, ["a cat", "rain"]]


@pytest.mark.parametrize("idf", IDF)
def test_texts_without_tokens_score_0(without_tokens, idf):
    preds = ["", "a cat", "", "a cat"]
    target = ["a cat", " ", "", ["", "the cat"]]

    result = bert_score(preds, target, without_tokens, idf=idf)
    alone = bert_score([""], [""], without_tokens, idf=idf)

    for name in COMPONENTS:
        assert result[name][:3].tolist() == [0, 0, 0]
        assert 0 < result[name][3] <= 1
        assert alone[name].tolist() == [0]


@pytest.mark.parametrize("idf", IDF)
def test_a_metric_of_texts_without_tokens_is_0(without_tokens, idf):
    metric = BERTScore(without_tokens, idf=idf, reduction="none")

    metric.update(["", "a cat"], ["a cat", "a cat"])

    assert metric.compute()["f1"][0] == 0


def test_rankings_of_texts_without_tokens_are_numbers(without_tokens):
    texts = ["a cat", "", "the dog", ""]

    matrix = score_matrix(texts, [*texts, "rain"], without_tokens)["f1"]
    ranked = rank_candidates([texts], encoder=without_tokens)

    assert (matrix > 0).tolist() == [[True, False, True, False, True], [False] * 5] * 2
    assert ranked.scores[0].isfinite().all()


def test_a_loss_of_texts_without_tokens_is_1(without_tokens):
    nothing = scores_of_the_loss(without_tokens, ["", ""])
    one_empty = scores_of_the_loss(without_tokens, ["", "a cat"])

    assert nothing.tolist() == [0, 0]
    assert one_empty[0] == 0
    assert one_empty[1] != 0


def test_the_signature_names_it(minilm, content_encoder):
    default = FrozenEncoder(minilm, num_layers=LAYER)

    assert "special" not in default.signature()
    assert str(content_encoder.signature()) == f"{default.signature()}|special:excluded"


def test_states_with_and_without_special_tokens_are_not_merged(minilm, content_encoder):
    default = FrozenEncoder(minilm, num_layers=LAYER)
    other = BERTScore(content_encoder)
    other.update(["a cat"], ["the cat"])

    with pytest.raises(ValueError, match="the state belongs to a metric that differs"):
        BERTScore(default).merge_state(other)


def test_an_alignment_has_no_share_of_special_tokens(content_encoder):
    pair = "a cat sleeps", "the kitten is sleeping"
    expected = bert_score(*pair, content_encoder)["f1"].item()

    result = align(*pair, content_encoder)

    assert result.candidate.tokens == ["a", "cat", "sleeps"]
    assert result.settings.endswith(f"layer {LAYER}, without special tokens")
    assert result.f1 == pytest.approx(expected, abs=1e-6)
    assert result.f1 == BERTScore(content_encoder).align(*pair).f1
    for side, similarity in ((result.candidate, result.similarity), (result.reference, result.similarity.T)):
        assert side.special_share == 0
        assert torch.equal(side.matches, similarity.argmax(1))
        assert torch.equal(side.best, similarity.amax(1))


def test_a_published_baseline_gives_a_warning(tmp_path, recwarn):
    folder = save_tiny_model("bert", tmp_path)
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_name_or_path": "bert-base-uncased"}))

    BERTScore(FrozenEncoder(folder, num_layers=2), rescale=True)

    assert not recwarn
    with pytest.warns(UserWarning, match=r"baseline of bert-base-uncased includes .* --exclude-special-tokens$"):
        BERTScore(FrozenEncoder(folder, num_layers=2, exclude_special_tokens=True), rescale=True)
