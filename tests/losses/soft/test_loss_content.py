"""SoftBERTScoreLoss: padding, masked positions and special tokens change nothing; no input gives NaN."""

import warnings

import pytest
import torch
from torch.nn.functional import one_hot
from transformers import AutoModel, AutoTokenizer

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge
from bertscore_tm.losses.soft.predictions import SoftTokens, encode_soft_tokens
from tests.support.models import tiny_tokenizer
from tests.support.soft_predictions import (
    IGNORE,
    MATCHINGS,
    TEXTS,
    certain,
    grad_of,
    labels_of,
    near_labels,
    noise,
    relax,
    tiny,
)


def spread(encoder, z, labels, places, width, filler=IGNORE):
    """Move positions apart, with random logits and fillers in between."""
    wide = noise(encoder, len(labels), width, scale=5.0, seed=7)
    wide_labels = torch.full((len(labels), width), filler)
    wide[:, places], wide_labels[:, places] = z, labels
    return wide, wide_labels


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


@pytest.mark.parametrize(
    ("place", "filler", "options"),
    [
        (lambda i: i, IGNORE, {}),
        (lambda i: i + 4, IGNORE, {"relaxation": relax}),
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
    wide, wide_labels = spread(encoder, z, labels, places, 26, filler)
    wide[:, [i for i in range(26) if i not in places]] = torch.nan  # a model may compute anything there
    wide_value, wide_gradient = grad_of(loss, wide, wide_labels)
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


def test_codes_are_not_text(minilm):
    # Codes of languages, as those of mBART and NLLB.
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm)
    tokenizer.add_special_tokens({"additional_special_tokens": ["de_DE", "en_XX"]})
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(len(tokenizer))
    encoder, code = FrozenEncoder(model, tokenizer, num_layers=5), tokenizer.convert_tokens_to_ids("de_DE")
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


def extreme_logits(encoder, kind, dtype):
    largest = torch.finfo(dtype).max
    z = noise(encoder, 2, 3, scale=1.0)
    if kind == "one-hot":
        z = 1e4 * one_hot(z.argmax(-1), z.shape[-1]).float()
    elif kind == "control only":
        z = z.fill_(-torch.inf).index_fill(2, torch.tensor(encoder.tokenizer.end_ids), 1.0)
    elif kind == "lowest":
        z.fill_(-largest)
    elif kind != "random":
        z = (z.sign() * kind).clamp(-largest, largest)
    return z.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [(torch.float32, 1.0), (torch.float32, 0.01), (torch.bfloat16, 0.01), (torch.float16, 1.0)],
)
@pytest.mark.parametrize("kind", ["random", "one-hot", 0.0, 1e4, 1e30, torch.inf, "lowest", "control only"])
@pytest.mark.parametrize("relaxation", ["softmax", relax])
def test_finite_for_all_logits(dtype, temperature, kind, relaxation):
    encoder = tiny("bert", "float32")
    options = {"temperature": temperature, "matching_temperature": temperature * 0.1, "relaxation": relaxation}
    loss = SoftBERTScoreLoss(encoder, **options)
    z = extreme_logits(encoder, kind, dtype)
    assert not z.isnan().any()
    value, gradient = grad_of(loss, z, torch.tensor([[50, 60, 70], [51, 61, IGNORE]]))
    assert value.dtype == torch.float32
    assert 0 <= value <= 2
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("matching", "component"), [("max", "f1"), ("softmax", "precision")])
@pytest.mark.parametrize("missing", ["mask", "labels", "end token", "masked text", "blank text"])
def test_rows_without_content_leave_the_mean(encoder, matching, component, missing):
    labels = labels_of(encoder)
    z = noise(encoder, *labels.shape)
    options = {"matching": matching, "component": component}
    loss = SoftBERTScoreLoss(encoder, reduction="none", **options)
    expected, expected_gradient = grad_of(loss, z, labels)
    mask = torch.tensor([[True], [False], [True]]).expand(labels.shape)
    args = {
        "mask": (labels, mask),
        "labels": (labels.masked_fill(~mask, IGNORE),),
        "end token": (torch.where(mask, labels, torch.tensor(102)),),
        "masked text": (TEXTS, (labels != IGNORE) & mask),
        "blank text": ([TEXTS[0], "  ", TEXTS[2]], labels != IGNORE),
    }[missing]
    value, gradient = grad_of(loss, z, *args)
    # An empty text is a prediction or a reference, whose score is 0 as in the metric.
    count = 3 if "text" in missing else 2
    assert value[1] == count - 2
    assert (gradient[1] == 0).all()
    assert torch.allclose(value[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-6)
    assert torch.allclose(gradient[[0, 2]], expected_gradient[[0, 2]], rtol=0, atol=1e-6)
    mean, gradient = grad_of(SoftBERTScoreLoss(encoder, **options), z, *args)
    assert mean.item() == pytest.approx(value.sum().item() / count, abs=1e-6)
    assert torch.allclose(gradient[[0, 2]], expected_gradient[[0, 2]] / count, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["bytes", "opt"])
def test_labels_may_begin_with_the_end_token(kind):
    """As those that hold the token from which BART's decoder starts, or OPT's beginning, which is its end too."""
    encoder, tokenizer = tiny("bert", "float32"), tiny_tokenizer(kind)
    loss = SoftBERTScoreLoss(encoder, VocabularyBridge(tokenizer, encoder, min_fidelity=0))
    end, ids = [tokenizer.eos_token_id], tokenizer(TEXTS[:1], add_special_tokens=False)["input_ids"][0]
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


@pytest.mark.parametrize("mode", ["mean", "expand"])
def test_no_position_through_a_bridge(mode):
    encoder = tiny("bert", "float32")
    loss = SoftBERTScoreLoss(encoder, VocabularyBridge(tiny_tokenizer("bytes"), encoder, mode, min_fidelity=0))
    assert loss(torch.zeros(2, 0, loss.bridge.vocab_size), torch.zeros(2, 0, dtype=torch.long)) == 0


@pytest.mark.parametrize("matching", MATCHINGS)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_nothing_but_empty_rows(family, matching):
    """GPT-2 has no special tokens, so that there is no token at all."""
    encoder = tiny(family, "float32")
    z = noise(encoder, 2, 3)
    nothing = torch.full((2, 3), IGNORE)
    for args in ((nothing,), (["", " "],), (TEXTS[:2], torch.zeros(2, 3, dtype=torch.bool))):
        value, gradient = grad_of(SoftBERTScoreLoss(encoder, matching=matching), z, *args)
        assert value == (args[0] is not nothing)
        assert (gradient == 0).all()
    if family == "bert":
        assert SoftBERTScoreLoss(encoder, matching=matching)(z[:, :0], nothing[:, :0]) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(encoder, dtype):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    for args in ((labels,), (TEXTS, labels != IGNORE)):
        value, gradient = grad_of(SoftBERTScoreLoss(encoder), z, *args)
        leaf = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype):
            inside = SoftBERTScoreLoss(encoder)(leaf, *args)
        inside.backward()
        assert inside.dtype == torch.float32
        assert inside.item() == pytest.approx(value.item(), abs=1e-6)
        assert torch.allclose(leaf.grad, gradient, rtol=0, atol=1e-7)
        # Logits in half precision lose their own rounding only.
        short = z.to(dtype)
        assert SoftBERTScoreLoss(encoder)(short, *args) == SoftBERTScoreLoss(encoder)(short.float(), *args)


def test_bfloat16_encoder_is_close(minilm, encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    value, gradient = grad_of(SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=5, dtype="bfloat16")), z, labels)
    exact, exact_gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), abs=5e-3)
    assert torch.cosine_similarity(gradient.flatten(), exact_gradient.flatten(), dim=0) > 0.99


def test_weights_are_not_rounded_to_the_precision_of_the_encoder():
    """As labels on an accelerator are encoded."""
    encoder = tiny("bert", "bfloat16")
    idf = {token: 1.0 + token % 97 / 97 for token in range(encoder.config.vocab_size)}
    vocabulary = SoftBERTScoreLoss(encoder, idf=idf)._load_vocabulary(torch.device("cpu"))
    labels = labels_of(encoder)
    ids, content = labels.clamp(min=0), labels != IGNORE
    soft = SoftTokens(vocabulary.table[ids], content, vocabulary.weights[ids])
    weights = encode_soft_tokens(soft, vocabulary).mass.weights
    expected = torch.tensor([idf[token] for token in labels[0][content[0]].tolist()])
    torch.testing.assert_close(weights[0, 1 : len(expected) + 1], expected, rtol=1e-6, atol=0)
