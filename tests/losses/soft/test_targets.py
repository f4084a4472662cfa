"""Targets of the loss: labels, masks, padding and special tokens."""

import warnings

import pytest
import torch
from torch.nn.functional import one_hot
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge
from tests.support.losses import spread
from tests.support.models import tiny_tokenizer
from tests.support.soft_predictions import (
    IGNORE,
    TEXTS,
    certain,
    grad_of,
    labels_of,
    near_labels,
    tiny,
)


def test_labels_have_no_characters_to_measure():
    encoder = tiny("bert")
    labels = labels_of(encoder)
    SoftBERTScoreLoss(encoder)(near_labels(encoder, labels), labels)
    before, after = encoder.tokenizer.special_affixes
    row = (*before, *labels[0][labels[0] != IGNORE].tolist(), *after)
    (vectors,) = encoder.cache("cpu", of_losses=True).get([row]).values()

    assert vectors.texts.has_content.tolist() == [True]
    assert vectors.texts.text_sizes.tolist() == [0]
    assert vectors.texts.unknown_sizes.tolist() == [0]


@pytest.mark.parametrize("as_texts", [True, False])
def test_mask_does_what_ignore_index_does(encoder, as_texts):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    loss = SoftBERTScoreLoss(encoder, reduction="none")
    value = loss(z, labels)
    other = SoftBERTScoreLoss(encoder, reduction="none", ignore_index=2054)

    assert torch.equal(other(z, labels.masked_fill(labels == IGNORE, 2054)), value)
    wide, wide_labels = spread(encoder, z, labels, [2 * i + 1 for i in range(labels.shape[1])], 30, filler=2054)
    mask = torch.zeros(wide_labels.shape, dtype=torch.bool)
    mask[:, 1 : 2 * labels.shape[1] : 2] = labels != IGNORE
    target = TEXTS if as_texts else wide_labels.masked_fill(wide_labels == IGNORE, 2054)
    assert torch.allclose(loss(wide, target, mask), value, rtol=0, atol=1e-6)
    assert torch.allclose(loss(wide, target, mask.long()), value, rtol=0, atol=1e-6)
    assert not torch.allclose(loss(wide, target), value, atol=1e-2)


MASKED = ["a black cat sat on the mat", "the weather is nice", "hello", "it rains in the north"]


def test_a_mask_with_the_end_tokens_is_reported_once(encoder, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    rows = tokenizer([f"{text} [SEP]" for text in MASKED], add_special_tokens=False, padding=True, return_tensors="pt")
    ids = rows["input_ids"]
    mask = rows["attention_mask"].bool()
    content = mask & (ids != tokenizer.sep_token_id)
    logits = certain(encoder, ids)
    loss = SoftBERTScoreLoss(encoder)

    with pytest.warns(UserWarning, match="last position of the mask, the predictions of 4 of 4 rows are end tokens"):
        worse = loss(logits, MASKED, mask)
    with warnings.catch_warnings(action="error"):
        loss(logits, MASKED, mask)
        assert SoftBERTScoreLoss(encoder)(logits, MASKED, content) < worse - 0.05
        SoftBERTScoreLoss(encoder)(logits, ids, mask)  # labels end at the end token themselves
        SoftBERTScoreLoss(encoder)(torch.zeros_like(logits), MASKED, mask)  # nothing learned yet
        SoftBERTScoreLoss(encoder)(logits, MASKED, torch.zeros_like(mask))


REFERENCES = ["a cat sat on the mat", "it rains in the north today"]
CANDIDATES = ["the dog ran to the home", "we met in the south today"]  # of as many tokens


def test_codes_are_not_text(minilm):
    # Codes of languages, as those of mBART and NLLB.
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    model = AutoModel.from_pretrained(minilm)
    tokenizer.add_special_tokens({"additional_special_tokens": ["de_DE", "en_XX"]})
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(len(tokenizer))
    encoder = FrozenEncoder(model, tokenizer, num_layers=5)
    code = tokenizer.convert_tokens_to_ids("de_DE")
    ids, labels = (
        torch.tensor([[code, *tokenizer.encode(text)[1:]] for text in texts]) for texts in (CANDIDATES, REFERENCES)
    )
    logits = 100.0 * one_hot(ids, len(tokenizer))
    # A code gets no probability where text is expected.
    likelier = logits.index_fill(2, torch.tensor([code]), 200.0)
    expected = bert_score(CANDIDATES, REFERENCES, encoder)["f1"]

    for bridged in (None, tokenizer):
        loss = SoftBERTScoreLoss(encoder, tokenizer=bridged, matching="max", reduction="none")
        for predictions in (logits, likelier):
            torch.testing.assert_close(1 - loss(predictions, labels), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["bytes", "opt"])
def test_labels_may_begin_with_the_end_token(kind):
    """As those that hold the token from which BART's decoder starts, or OPT's beginning, which is its end too."""
    encoder = tiny("bert", "float32")
    tokenizer = tiny_tokenizer(kind)
    loss = SoftBERTScoreLoss(encoder, VocabularyBridge(tokenizer, encoder, min_fidelity=0))
    end = [tokenizer.eos_token_id]
    ids = tokenizer(TEXTS[:1], add_special_tokens=False)["input_ids"][0]

    for beginning, ending in (([], end), (end, end), (end, [*end, *ids] if kind == "bytes" else end)):
        labels = torch.tensor([[*beginning, *ids, *ending]])
        value, gradient = grad_of(loss, certain(loss.bridge, labels, 8.0), labels)
        before, of_text, after = torch.split(gradient, [len(beginning), len(ids), len(ending)], dim=1)
        if not beginning:
            expected = value, of_text
        torch.testing.assert_close((value, of_text), expected, atol=1e-6, rtol=1e-4)
        assert of_text.any()
        assert not before.any()
        assert not after.any()
