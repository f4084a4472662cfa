"""SoftBERTScoreLoss: padding, masked positions and special tokens change nothing."""

import warnings

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import FAMILIES
from tests.support.soft_predictions import (
    IGNORE,
    TEXTS,
    certain,
    grad_of,
    labels_of,
    near_labels,
    noise,
    tiny,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def spread(encoder, z, labels, places, width, filler=IGNORE):
    """Move positions apart, with random logits and fillers in between."""
    wide = noise(encoder, len(labels), width, scale=5.0, seed=7)
    wide_labels = torch.full((len(labels), width), filler)
    wide[:, places], wide_labels[:, places] = z, labels
    return wide, wide_labels


@pytest.mark.parametrize(
    ("place", "filler", "options"),
    [
        (lambda i: i, IGNORE, {}),
        (lambda i: i + 4, IGNORE, {}),
        (lambda i: 2 * i, IGNORE, {}),
        (lambda i: 3 * i + 2, IGNORE, {"matching": "max", "idf": ["a cat", "the weather"]}),
        (lambda i: 3 * i + 2, "pad", {}),
        (lambda i: 3 * i + 2, "cls", {}),
    ],
    ids=["right", "left", "holes", "all", "all-pad", "all-cls"],
)
def test_padding_changes_nothing(encoder, place, filler, options):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    loss = SoftBERTScoreLoss(encoder, reduction="none", **options)
    value, gradient = grad_of(loss, z, labels)
    places = [place(i) for i in range(labels.shape[1])]
    hf_tokenizer = encoder.tokenizer.tokenizer
    filler = {"pad": hf_tokenizer.pad_token_id, "cls": hf_tokenizer.cls_token_id}.get(filler, filler)
    wide_value, wide_gradient = grad_of(loss, *spread(encoder, z, labels, places, 26, filler))
    assert torch.allclose(wide_value, value, rtol=0, atol=1e-6)
    assert torch.allclose(wide_gradient[:, places], gradient, rtol=0, atol=1e-6)
    wide_gradient[:, places] = 0
    assert (wide_gradient == 0).all()


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


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_a_row_alone_is_a_row_in_a_batch(encoder, pairs, family):
    encoder = tiny(family) if family else encoder
    labels = labels_of(encoder, [" ".join(text.split()[: 3 + 2 * i]) for i, text in enumerate(pairs[1][:5])])
    z = near_labels(encoder, labels)
    loss = SoftBERTScoreLoss(encoder, reduction="none")
    together, gradient = grad_of(loss, z, labels)
    for row in range(len(labels)):
        length = int((labels[row] != IGNORE).sum())
        alone, alone_gradient = grad_of(loss, z[row : row + 1, :length], labels[row : row + 1, :length])
        assert alone.item() == pytest.approx(together[row].item(), abs=1e-6)
        assert torch.allclose(alone_gradient[0], gradient[row, :length], rtol=0, atol=1e-6)


def test_logits_of_control_tokens_do_not_matter(encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    value, gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    controls = [0, 101, 102]
    assert (gradient[..., controls] == 0).all()
    z[..., controls] = torch.tensor([1e4, -1e4, torch.inf])
    other_value, other_gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    assert torch.equal(value, other_value)
    assert torch.equal(gradient, other_gradient)


MASKED = ["a black cat sat on the mat", "the weather is nice", "hello", "it rains in the north"]


def test_a_mask_with_the_end_tokens_is_reported_once(encoder, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    rows = tokenizer([f"{text} [SEP]" for text in MASKED], add_special_tokens=False, padding=True, return_tensors="pt")
    ids, mask = rows["input_ids"], rows["attention_mask"].bool()
    content, logits = mask & (ids != tokenizer.sep_token_id), certain(encoder, ids)
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


@pytest.fixture(scope="module")
def with_codes(minilm):
    """Return an encoder whose tokenizer has codes, as those of mBART and NLLB do, and the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.add_special_tokens({"additional_special_tokens": ["de_DE", "en_XX"]})
    model = AutoModel.from_pretrained(minilm)
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(len(tokenizer))
    return FrozenEncoder(model, tokenizer, num_layers=5), tokenizer


@pytest.mark.parametrize("bridged", [False, True])
def test_codes_are_not_text(with_codes, bridged):
    encoder, tokenizer = with_codes
    code = tokenizer.convert_tokens_to_ids("de_DE")

    def ids_of(texts):
        return torch.tensor([[code, *tokenizer.encode(text)[1:]] for text in texts])

    logits = 100.0 * torch.nn.functional.one_hot(ids_of(CANDIDATES), len(tokenizer))
    loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer if bridged else None, matching="max", reduction="none")
    expected = bert_score(CANDIDATES, REFERENCES, encoder)["f1"]
    torch.testing.assert_close(1 - loss(logits, ids_of(REFERENCES)), expected, atol=1e-5, rtol=0)
    # A code gets no probability where text is expected.
    likelier = logits.float().index_fill(2, torch.tensor([code]), 200.0)
    torch.testing.assert_close(1 - loss(likelier, ids_of(REFERENCES)), expected, atol=1e-5, rtol=0)
