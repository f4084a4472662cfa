"""Ends of texts: certain ones have the metric's score, others are trained."""

import pytest
import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.families import FAMILIES
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import EVERY_FAMILY, tiny_model
from tests.support.soft_predictions import (
    IGNORE,
    MATCHINGS,
    SHARP,
    assert_scores,
    certain,
    content_ids,
    equally_long,
    labels_of,
    noise,
    scores_of_certain_predictions,
    tiny,
)
from tests.support.texts import several_references

pytestmark = pytest.mark.usefixtures("one_thread")

GRADED = [name for name in EVERY_FAMILY if FAMILIES[name].additive_mask and name not in ("mbart", "blenderbot-small")]


@pytest.mark.parametrize("family", GRADED)
def test_certain_ends_have_the_score_of_the_text_before_them(family, short):
    encoder = tiny(family, "float32")
    texts, references = short[0][:6], short[1][:6]
    end = encoder.tokenizer.end_ids[0]
    rows = content_ids(encoder, texts)
    width = max(map(len, rows)) + 3
    # Other tokens follow the end.
    labels = torch.tensor([[*row, end, *[77] * (width - len(row) - 1)] for row in rows])
    expected = bert_score(texts, references, encoder)
    for matching in MATCHINGS:
        loss = SoftBERTScoreLoss(encoder, length="eos", matching=matching, **SHARP)
        assert_scores(loss(certain(encoder, labels), references, return_components=True)[1], expected)
    # Texts without an end token end after their last position.
    loss = SoftBERTScoreLoss(encoder, length="eos", matching="max", **SHARP)
    labels = labels_of(encoder, texts)
    scores = loss(certain(encoder, labels), references, labels != IGNORE, return_components=True)[1]
    assert_scores(scores, expected)


@pytest.mark.parametrize("family", ["bert", "bart", "mbart", "t5"])
def test_certain_predictions_without_special_tokens(family, short):
    encoder = FrozenEncoder(*tiny_model(family), num_layers=2, exclude_special_tokens=True)
    texts, references = short[0][:6], several_references(short[1][:6])
    rows = content_ids(encoder, texts)
    targets = [("target", labels_of(encoder, texts), labels_of(encoder, texts) != IGNORE)]
    if family in ("bert", "bart"):
        end, width = encoder.tokenizer.end_ids[0], max(map(len, rows)) + 3
        targets.append(("eos", torch.tensor([[*row, end, *[77] * (width - len(row) - 1)] for row in rows]), None))
    for idf in (None, short[1][6:40]):
        expected = bert_score(texts, references, encoder, idf_sents=idf)
        for matching in MATCHINGS:
            for length, labels, mask in targets:
                loss = SoftBERTScoreLoss(encoder, length=length, matching=matching, idf=idf, **SHARP)
                scores = loss(certain(encoder, labels), references, mask, return_components=True)[1]
                assert_scores(scores, expected)
    # References in labels are encoded as soft tokens, too.
    pair = equally_long(encoder, short[0][:9], short[1][:9])
    loss = SoftBERTScoreLoss(encoder, matching="max", **SHARP)
    assert_scores(scores_of_certain_predictions(loss, *pair, "ids"), bert_score(*pair, encoder))


def test_an_end_at_once_scores_0(encoder):
    end = encoder.tokenizer.end_ids[0]
    labels = torch.tensor([[end, 2054, 2054]])
    for matching in (*MATCHINGS, "transport"):
        loss = SoftBERTScoreLoss(encoder, length="eos", matching=matching)
        assert loss(certain(encoder, labels), ["a cat"]).item() == pytest.approx(1, abs=1e-6)
        assert loss(certain(encoder, labels[:, :0]), ["a cat"]).item() == 1


def test_probability_of_the_end_is_trained(encoder):
    """The end wants to be where the reference ends, from either side."""
    text = "the weather is nice today"
    row = content_ids(encoder, [text])[0]
    end = encoder.tokenizer.end_ids[0]
    loss = SoftBERTScoreLoss(encoder, length="eos")
    labels = torch.tensor([[*row, 2003, 2003, 2003]])
    z = certain(encoder, labels, 12.0)
    z[0, len(row), end] = 12.0  # as likely as going on
    z.requires_grad_()
    loss(z, [text]).backward()
    assert z.grad[0, len(row), end] < -1e-3  # to end here is better than to say "is" again
    early = certain(encoder, labels, 12.0)
    early[0, 2, end] = 12.0
    early.requires_grad_()
    loss(early, [text]).backward()
    assert early.grad[0, 2, end] > 1e-3  # and to end early is worse


def test_gradcheck_of_ends():
    encoder = tiny()
    target = torch.tensor([[50, 60, 70, 80], [51, 61, IGNORE, IGNORE]])
    end = encoder.tokenizer.end_ids[0]
    base = noise(encoder, 2, 4, dtype=torch.float64, scale=1.0) + certain(encoder, target, 4.0)
    base[:, 1:, end] += 4.0
    directions = noise(encoder, 4, 2, 4, dtype=torch.float64, seed=1, scale=1.0)
    directions[..., end] *= 3
    for matching in (*MATCHINGS, "transport"):
        loss = SoftBERTScoreLoss(encoder, length="eos", matching=matching, reduction="none")

        def along(x, loss=loss):
            return loss(base + torch.einsum("k,kbtv->btv", x, directions), target)

        x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.grad(along(x).sum(), x)[0].abs().max() > 1e-3
        assert torch.autograd.gradcheck(along, x, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("mbart", "exactly one special token after a text, .* puts 2"),
        ("gpt2", "needs an end token"),
        ("deberta", "'deberta' do not support tokens with a fractional weight.* these do: .*roberta"),
        ("modernbert", "'modernbert' do not support tokens with a fractional weight"),
    ],
)
def test_encoders_without_ends_are_named(family, said):
    with pytest.raises(ValueError, match=said):
        SoftBERTScoreLoss(tiny(family, "float32"), length="eos")


def test_text_of_padding_does_not_matter_to_ends(encoder):
    labels = labels_of(encoder)
    loss = SoftBERTScoreLoss(encoder, length="eos", reduction="none")
    z = noise(encoder, *labels.shape)
    together = loss(z, labels)
    for row in range(len(labels)):
        kept = int((labels[row] != IGNORE).sum())
        alone = loss(z[row : row + 1, :kept], labels[row : row + 1, :kept])
        assert alone.item() == pytest.approx(together[row].item(), abs=1e-6)
