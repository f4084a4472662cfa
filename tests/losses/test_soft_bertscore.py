"""SoftBERTScoreLoss: equal to the metric where predictions are certain, differentiable and bounded everywhere else."""

import copy
import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot
from transformers.modeling_outputs import CausalLMOutput

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.core.scores import guarded_f1
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import FAMILIES, tiny_model
from tests.support.soft_predictions import (
    COMPONENTS,
    CPU,
    IGNORE,
    MATCHINGS,
    TEXTS,
    certain,
    content_ids,
    equally_long,
    grad_of,
    labels_of,
    near_labels,
    noise,
    padded,
    scores_of_certain_predictions,
    tiny,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- 1. certain predictions have the metric's score


@pytest.mark.slow
@pytest.mark.parametrize(("matching", "target"), [("softmax", "ids"), ("logsumexp", "texts")])
def test_certain_predictions_have_the_score_of_the_metric(encoder, pairs, matching, target):
    candidates, references = equally_long(encoder, *pairs) if target == "ids" else pairs
    candidates, references = candidates[:24], references[:24]
    assert len(candidates) == 24
    loss = SoftBERTScoreLoss(encoder, matching=matching, matching_temperature=1e-6, reduction="none")
    scores = scores_of_certain_predictions(loss, candidates, references, target)
    expected = bert_score(candidates, references, encoder)
    assert expected["f1"].std() > 0.05
    for name in COMPONENTS:
        assert (scores[f"teacher_forced_{name}"] - expected[name]).abs().max() < 1e-6
        assert (scores[name] - expected[name]).abs().max() < 1e-5


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("target", ["ids", "texts"])
def test_component_chooses_the_score(encoder, pairs, component, target):
    candidates, references = equally_long(encoder, pairs[0][:8], pairs[1][:8])
    labels = labels_of(encoder, candidates)
    loss = SoftBERTScoreLoss(encoder, matching="max", component=component, reduction="none")
    args = (references, labels != IGNORE) if target == "texts" else (labels_of(encoder, references),)
    expected = bert_score(candidates, references, encoder)
    assert torch.allclose(1 - loss(certain(encoder, labels), *args), expected[component], atol=1e-6)
    assert not torch.allclose(expected["precision"], expected["recall"], atol=1e-3)


# Families differ in how soft tokens are encoded; labels and texts differ in who encodes the references.
@pytest.mark.parametrize(("family", "target"), [*((family, "ids") for family in FAMILIES), ("bert", "texts")])
def test_certain_predictions_have_the_score_of_the_metric_in_every_family(pairs, family, target):
    encoder = tiny(family, "float32")
    candidates, references = equally_long(encoder, pairs[0][:16], pairs[1][:16])
    assert len(candidates) >= 10
    expected = bert_score(candidates, references, encoder)
    for matching in MATCHINGS:
        loss = SoftBERTScoreLoss(encoder, matching=matching, matching_temperature=1e-6, reduction="none")
        scores = scores_of_certain_predictions(loss, candidates, references, target)
        for name in COMPONENTS:
            assert (scores[name] - expected[name]).abs().max() < 1e-5
            assert (scores[f"teacher_forced_{name}"] - expected[name]).abs().max() < 1e-5


# --- 2. the formula, written as loops


def plain_match(row, how, v):
    top = max(row)
    weights = [math.exp((s - top) / v) for s in row]
    if how == "max":
        return top
    if how == "softmax":
        return sum(w * s for w, s in zip(weights, row, strict=True)) / sum(weights)
    return top + v * math.log(sum(weights))


def plain_scores(family, z, ids, u, v, how):
    """Precision, recall and F1 of one sentence without padding; z: logits at content positions, ids: their labels."""
    model, tokenizer = tiny_model(family)
    model = copy.deepcopy(model).double()
    vocabulary = torch.arange(model.config.vocab_size)
    table = model.get_input_embeddings()(vocabulary)
    controls = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    controls |= {tokenizer.cls_token_id, tokenizer.sep_token_id}
    words = [k for k in range(len(vocabulary)) if k not in controls]
    p = (z[:, words] / u).softmax(-1)
    soft = torch.cat([table[[tokenizer.cls_token_id]], p @ table[words], table[[tokenizer.sep_token_id]]])
    hard = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])
    x = model(inputs_embeds=soft[None], output_hidden_states=True).hidden_states[2][0]
    y = model(input_ids=hard, output_hidden_states=True).hidden_states[2][0]
    s = [[(a @ b / (a.norm() * b.norm())).item() for b in y] for a in x]
    by_reference = [list(column) for column in zip(*s, strict=True)]
    precision = sum(plain_match(row, how, v) for row in s[1:-1]) / len(ids)
    recall = sum(plain_match(row, how, v) for row in by_reference[1:-1]) / len(ids)
    both = min(precision, recall)
    return precision, recall, 2 * precision * recall / (precision + recall) if both > 0 else both


@pytest.mark.parametrize(
    ("family", "matching", "u", "v"),
    [
        ("bert", "softmax", 1.0, 0.1),
        ("bert", "softmax", 0.4, 0.5),
        ("bert", "logsumexp", 2.0, 0.1),
        ("bert", "max", 1.0, 0.1),
        *((family, "softmax", 1.0, 0.1) for family in ("roberta", "mpnet", "electra", "distilbert", "deberta-v2")),
    ],
)
@torch.no_grad()
def test_equals_the_formula_written_as_loops(family, matching, u, v):
    encoder = tiny(family)
    end = encoder.tokenizer.end_ids[0]
    start, pad = encoder.tokenizer.tokenizer.cls_token_id, encoder.tokenizer.pad_id
    target = torch.tensor([[start, 50, 60, 70, 80, 90, end, 33], [IGNORE, 51, IGNORE, 61, 71, end, pad, pad]])
    where = [[1, 2, 3, 4, 5], [1, 3, 4]]
    z = noise(encoder, *target.shape, dtype=torch.float64)
    loss = SoftBERTScoreLoss(encoder, temperature=u, matching=matching, matching_temperature=v, reduction="none")
    value, components = loss(z, target, return_components=True)
    for row, positions in enumerate(where):
        expected = plain_scores(family, z[row, positions], target[row, positions].tolist(), u, v, matching)
        hard = plain_scores(family, z[row, positions], target[row, positions].tolist(), u, v, "max")
        for name, plain, plain_hard in zip(COMPONENTS, expected, hard, strict=True):
            assert components[name][row].item() == pytest.approx(plain, abs=1e-12)
            assert components[f"teacher_forced_{name}"][row].item() == pytest.approx(plain_hard, abs=1e-12)
        assert value[row].item() == pytest.approx(1 - expected[2], abs=1e-12)


# --- 3. gradients are right


@pytest.mark.parametrize(
    ("family", "matching", "component"),
    [
        *(("bert", matching, "f1") for matching in MATCHINGS),
        ("bert", "softmax", "precision"),
        ("bert", "softmax", "recall"),
        ("roberta", "softmax", "f1"),
    ],
)
def test_gradcheck(family, matching, component):
    encoder = tiny(family)
    target = torch.tensor([[50, 60, 70, 80, 90], [51, IGNORE, 61, 71, 81]])
    mask = torch.tensor([[True] * 5, [True] * 4 + [False]])
    base = noise(encoder, 2, 5, dtype=torch.float64) + certain(encoder, target, 4.0)
    directions = noise(encoder, 4, 2, 5, dtype=torch.float64, seed=1)
    loss = SoftBERTScoreLoss(encoder, matching=matching, component=component, temperature=0.8, reduction="none")

    def along(x):
        return loss(base + torch.einsum("k,kbtv->btv", x, directions), target, mask)

    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(along(x).sum(), x)
    assert gradient.abs().max() > 1e-2
    assert torch.autograd.gradcheck(along, x, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_gradient_lies_at_content_positions_only(encoder):
    labels = labels_of(encoder)
    _, gradient = grad_of(SoftBERTScoreLoss(encoder), near_labels(encoder, labels), labels)
    assert torch.equal(gradient.abs().sum(-1) > 0, labels != IGNORE)


# --- 4. the encoder is frozen and shared


def test_gradient_reaches_the_logits_and_nothing_else(encoder):
    loss = SoftBERTScoreLoss(encoder)
    labels = labels_of(encoder)
    hidden = torch.randn(*labels.shape, 8)
    head = torch.nn.Linear(8, len(encoder.embedding_table(CPU)))
    loss(head(hidden), labels).backward()
    assert head.weight.grad.abs().sum() > 0
    backbone = list(encoder.backbone(CPU).parameters())
    assert backbone
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in backbone)


def test_owns_no_parameters_modules_or_state(encoder):
    loss = SoftBERTScoreLoss(encoder).train().to(torch.float64)
    assert list(loss.parameters()) == list(loss.buffers()) == list(loss.children()) == []
    assert not loss.state_dict()
    assert not encoder.backbone(CPU).training
    assert encoder.embedding_table(CPU).dtype == torch.float32


def test_one_encoder_in_memory(minilm, encoder):
    metric = BERTScore(minilm, num_layers=5)
    by_path, by_metric = SoftBERTScoreLoss(minilm, num_layers=5), SoftBERTScoreLoss(metric.encoder)
    assert by_metric.encoder is metric.encoder
    labels = labels_of(encoder)
    by_path(near_labels(encoder, labels), labels)
    metric.update(TEXTS, TEXTS)
    assert by_path.encoder.backbone(CPU) is metric.encoder.backbone(CPU) is encoder.backbone(CPU)
    assert by_path.encoder.embedding_table(CPU).data_ptr() == encoder.embedding_table(CPU).data_ptr()


def test_works_after_the_encoder_was_loaded_and_used_in_inference_mode(minilm):
    with torch.inference_mode():
        fresh = FrozenEncoder(minilm, num_layers=2)
        bert_score(TEXTS, TEXTS, fresh)
        loss = SoftBERTScoreLoss(fresh)
        labels = labels_of(fresh)
        quiet = loss(near_labels(fresh, labels), labels)
    labels = labels.clone()
    value, gradient = grad_of(loss, near_labels(fresh, labels), labels)
    assert value == pytest.approx(quiet.item(), abs=1e-6)
    assert gradient.abs().sum() > 0


def test_same_loss_and_gradient_every_time(encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    first, second = (grad_of(SoftBERTScoreLoss(encoder).train(), z, labels) for _ in range(2))
    assert all(map(torch.equal, first, second))


# --- 5. what is no content changes nothing


def spread(encoder, z, labels, places, width, filler=IGNORE):
    """Move positions apart, with random logits and fillers in between."""
    wide = noise(encoder, len(labels), width, scale=5.0, seed=7)
    wide_labels = torch.full((len(labels), width), filler)
    wide[:, places], wide_labels[:, places] = z, labels
    return wide, wide_labels


@pytest.mark.parametrize(
    ("place", "filler"),
    [
        (lambda i: i, IGNORE),
        (lambda i: i + 4, IGNORE),
        (lambda i: 2 * i, IGNORE),
        (lambda i: 3 * i + 2, IGNORE),
        (lambda i: 3 * i + 2, "pad"),
        (lambda i: 3 * i + 2, "cls"),
    ],
    ids=["right", "left", "holes", "all", "all-pad", "all-cls"],
)
def test_padding_changes_nothing(encoder, place, filler):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    loss = SoftBERTScoreLoss(encoder, reduction="none")
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


def test_special_tokens_in_labels_are_no_content(encoder):
    rows = content_ids(encoder, TEXTS)
    plain = padded(rows)
    full = padded([[101, *row, 102, 2054, 0] for row in rows], 0)
    z = noise(encoder, *full.shape)
    loss = SoftBERTScoreLoss(encoder, reduction="none")
    expected, expected_gradient = grad_of(loss, z[:, 1 : 1 + plain.shape[1]], plain)
    value, gradient = grad_of(loss, z, full)
    assert torch.allclose(value, expected, rtol=0, atol=1e-6)
    assert torch.allclose(gradient[:, 1 : 1 + plain.shape[1]], expected_gradient, rtol=0, atol=1e-6)
    assert (gradient[:, 0] == 0).all()


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


def test_another_ignore_index(encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    expected = SoftBERTScoreLoss(encoder)(z, labels)
    for index in (-1, 2054):
        renamed = labels.masked_fill(labels == IGNORE, index)
        assert torch.equal(SoftBERTScoreLoss(encoder, ignore_index=index)(z, renamed), expected)


# --- 6. finite for all inputs


def extreme_logits(encoder, kind, dtype):
    shape = (2, 3, len(encoder.embedding_table(CPU)))
    largest = torch.finfo(dtype).max
    z = noise(encoder, *shape[:2], scale=1.0)
    if kind == "constant":
        z = torch.zeros(shape)
    elif kind == "one-hot":
        z = 1e4 * one_hot(z.argmax(-1), shape[-1]).float()
    elif kind == "control only":
        z = torch.full(shape, -torch.inf)
        z[..., encoder.tokenizer.end_ids] = 1.0
    elif kind == "lowest":
        z = torch.full(shape, -largest)
    elif isinstance(kind, float):
        z = (z.sign() * kind).clamp(-largest, largest)
    elif kind == "largest":
        z = z.sign() * largest
    return z.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    [(torch.float32, 1.0), (torch.float32, 0.01), (torch.bfloat16, 0.01), (torch.float16, 1.0)],
)
def test_finite_for_all_logits(dtype, temperature):
    encoder = tiny("bert", "float32")
    loss = SoftBERTScoreLoss(encoder, temperature=temperature, matching_temperature=temperature * 0.1)
    for kind in ("random", "constant", "one-hot", 1e4, 1e30, -1e30, "largest", "lowest", "control only"):
        z = extreme_logits(encoder, kind, dtype)
        assert not z.isnan().any()
        value, gradient = grad_of(loss, z, torch.tensor([[50, 60, 70], [51, 61, IGNORE]]))
        assert value.dtype == torch.float32
        assert 0 <= value <= 2
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


ONE_VARIED = [*((matching, "f1") for matching in MATCHINGS), ("softmax", "precision"), ("softmax", "recall")]


@pytest.mark.parametrize(("matching", "component"), ONE_VARIED)
def test_empty_rows_score_0_without_gradient(encoder, matching, component):
    labels = labels_of(encoder)
    z = noise(encoder, *labels.shape)
    loss = SoftBERTScoreLoss(encoder, matching=matching, component=component, reduction="none")
    expected, expected_gradient = grad_of(loss, z, labels)
    mask = torch.tensor([[True], [False], [True]]).expand(labels.shape)
    ignored = labels.masked_fill(~mask, IGNORE)
    ended = torch.where(mask, labels, torch.tensor(102))
    texts = [TEXTS[0], "  ", TEXTS[2]]
    for args in ((labels, mask), (ignored,), (ended,), (texts, labels != IGNORE)):
        value, gradient = grad_of(loss, z, *args)
        assert value[1] == 1
        assert (gradient[1] == 0).all()
        assert torch.allclose(value[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-6)
        assert torch.allclose(gradient[[0, 2]], expected_gradient[[0, 2]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("matching", MATCHINGS)
def test_nothing_but_empty_rows(encoder, matching):
    z = noise(encoder, 2, 3)
    nothing = torch.full((2, 3), IGNORE)
    for args in ((nothing,), (["", " "],), (TEXTS[:2], torch.zeros(2, 3, dtype=torch.bool))):
        value, gradient = grad_of(SoftBERTScoreLoss(encoder, matching=matching), z, *args)
        assert value == 1
        assert (gradient == 0).all()
    value, gradient = grad_of(SoftBERTScoreLoss(encoder, matching=matching), z[:, :0], nothing[:, :0])
    assert value == 1


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_lose_only_their_own_rounding(encoder, dtype):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels).to(dtype)
    assert SoftBERTScoreLoss(encoder)(z, labels) == SoftBERTScoreLoss(encoder)(z.float(), labels)


def test_bfloat16_encoder_is_close(minilm, encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    value, gradient = grad_of(SoftBERTScoreLoss(minilm, 5, dtype="bfloat16"), z, labels)
    exact, exact_gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), abs=5e-3)
    assert torch.cosine_similarity(gradient.flatten(), exact_gradient.flatten(), dim=0) > 0.99


# A similarity of float32 vectors is a multiple of far more than 1e-30, or 0.
SCORE = st.one_of(
    st.just(0.0),
    st.floats(-1, 1, width=32),
    st.floats(-(2**-20), 2**-20, width=32),
    st.sampled_from([1e-8, -1e-8, 1.0]),
).filter(lambda x: x == 0 or abs(x) > 1e-18)


@settings(deadline=None)
@given(SCORE, SCORE)
def test_guarded_f1(p, r):
    precision, recall = (torch.tensor(x, requires_grad=True) for x in (p, r))
    f1 = guarded_f1(precision, recall)
    f1.backward()
    smaller, larger = sorted((p, r))
    assert smaller <= f1.item() * (1 + 1e-6) + 1e-12 or f1.item() == smaller
    assert f1.item() <= larger + 1e-6 * abs(larger)
    for gradient in (precision.grad, recall.grad):
        assert -1e-6 <= gradient.item() <= 2 + 1e-5
    if smaller > 0:
        assert f1.item() == pytest.approx(2 / (1 / p + 1 / r), rel=1e-5)
    else:
        assert f1.item() == pytest.approx(smaller, rel=1e-6)


@settings(deadline=None)
@given(SCORE, SCORE, st.floats(-1e-4, 1e-4), st.floats(-1e-4, 1e-4))
def test_guarded_f1_is_continuous(p, r, dp, dr):
    here, there = (guarded_f1(torch.tensor(a), torch.tensor(b)).item() for a, b in ((p, r), (p + dp, r + dr)))
    assert abs(here - there) <= 2 * (abs(dp) + abs(dr)) + 1e-6


# --- 7. the interface


def test_reductions(encoder):
    labels = labels_of(encoder)
    z = noise(encoder, *labels.shape)
    rows, rows_components = SoftBERTScoreLoss(encoder, reduction="none")(z, labels, return_components=True)
    assert rows.shape == (3,)
    names = {*COMPONENTS, *(f"teacher_forced_{name}" for name in COMPONENTS), "entropy", "special_mass"}
    for reduction in ("mean", "sum"):
        z.requires_grad_()
        value, components = SoftBERTScoreLoss(encoder, reduction=reduction)(z, labels, return_components=True)
        assert value.requires_grad
        assert value.item() == pytest.approx(getattr(rows, reduction)().item(), rel=1e-6)
        assert components.keys() == rows_components.keys() == names
        for name, component in components.items():
            assert not component.requires_grad
            assert component.shape == ()
            assert component.item() == pytest.approx(getattr(rows_components[name], reduction)().item(), rel=1e-6)


def test_components_do_not_change_loss_or_gradient(encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    value, gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)
    again, gradient_again = grad_of(lambda *a: SoftBERTScoreLoss(encoder)(*a, return_components=True)[0], z, labels)
    assert torch.equal(value, again)
    assert torch.equal(gradient, gradient_again)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"matching": "hungarian"}, "matching='hungarian'"),
        ({"component": "f2"}, "component='f2'"),
        ({"reduction": "median"}, "reduction='median'"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"matching_temperature": 0.0}, "matching_temperature"),
        ({"matching_temperature": -0.1}, "matching_temperature"),
        ({"num_layers": 3}, "num_layers"),
    ],
    ids=str,
)
def test_impossible_settings(encoder, settings, said):
    with pytest.raises(ValueError, match=said):
        SoftBERTScoreLoss(encoder, **settings)


def test_generator_with_the_same_vocabulary_needs_no_other_table(encoder):
    loss = SoftBERTScoreLoss(encoder, generator_tokenizer=encoder.tokenizer.tokenizer)
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    # The same vectors; the last digit of a product may depend on where they lie in memory.
    assert loss(z, labels).item() == pytest.approx(SoftBERTScoreLoss(encoder)(z, labels).item(), abs=1e-7)
    vocabulary = loss._vocabulary.load(CPU)[0]
    assert vocabulary.table.data_ptr() == encoder.embedding_table(CPU).data_ptr()
    # Uniform weights need no table, and averaged ones would be one.
    assert vocabulary.weights is None


def test_all_layers_is_refused(minilm):
    with pytest.raises(ValueError, match="all_layers"):
        SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=1, all_layers=True))


@pytest.mark.parametrize(
    ("shape", "target", "mask", "said"),
    [
        ((3, 30522), torch.ones(3, dtype=torch.long), None, r"\(3, 30522\)"),
        ((1, 2, 3, 30522), torch.ones(1, 2, 3, dtype=torch.long), None, "shape"),
        ((2, 3, 50265), torch.ones(2, 3, dtype=torch.long), None, "50265.*30522"),
        ((2, 3, 30522), torch.ones(2, 4, dtype=torch.long), None, r"\(2, 3\).*\(2, 4\)"),
        ((2, 3, 30522), torch.ones(6, dtype=torch.long), None, "target"),
        ((2, 3, 30522), torch.ones(2, 3, dtype=torch.long), torch.ones(2, 4), r"mask.*\(2, 3\).*\(2, 4\)"),
        ((2, 3, 30522), ["a", "b"], torch.ones(3, 2), "mask"),
        ((2, 3, 30522), ["a", "b", "c"], None, "2 texts"),
        ((2, 3, 30522), "ab", None, "2 texts"),
    ],
)
def test_unequal_shapes_are_refused(encoder, shape, target, mask, said):
    with pytest.raises(ValueError, match=said):
        SoftBERTScoreLoss(encoder)(torch.zeros(shape), target, mask)


@pytest.mark.parametrize("as_texts", [True, False])
def test_long_rows_are_refused_and_long_padding_is_not(minilm, encoder, as_texts):
    short = FrozenEncoder(minilm, num_layers=5, max_length=10)
    labels = labels_of(encoder)
    assert labels.shape[1] == 7
    wide = torch.full((3, 20), IGNORE)
    wide[:, 6:13] = labels
    z = near_labels(encoder, wide)
    loss = SoftBERTScoreLoss(short)
    expected = SoftBERTScoreLoss(encoder)(z[:, 6:13], labels).item()
    args = (TEXTS, wide != IGNORE) if as_texts else (wide,)
    assert loss(z, *args).item() == pytest.approx(expected, abs=1e-6)
    too_long = torch.full((3, 20), IGNORE)
    too_long[1, 3:12] = 2054
    with pytest.raises(ValueError, match=r"9 tokens.* takes 8 and its special tokens"):
        loss(z, *((TEXTS, too_long != IGNORE) if as_texts else (too_long,)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
@pytest.mark.parametrize("ready", [False, True])
def test_copies_and_pickles(encoder, ready, copied):
    encoder = tiny("bert", "float32") if ready else encoder
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    settings = {"temperature": 0.7, "matching": "logsumexp", "matching_temperature": 0.2, "component": "recall"}
    loss = SoftBERTScoreLoss(encoder, reduction="sum", **settings)
    other = copied(loss)
    # Not bit by bit: the order of sums can depend on where the copied weights lie in memory.
    assert loss(z, labels).item() == pytest.approx(other(z, labels).item(), abs=1e-6)
    assert repr(loss) == repr(other)


def test_pickle_leaves_the_weights_out(encoder):
    table = encoder.embedding_table(CPU)
    assert len(pickle.dumps(SoftBERTScoreLoss(encoder))) < table.nbytes / 20


def test_repr_names_the_settings(encoder):
    said = repr(SoftBERTScoreLoss(encoder, temperature=0.7, component="recall"))
    for part in ("layer 5", "temperature=0.7", "matching='softmax'", "recall"):
        assert part in said


def test_settings_can_be_annealed(encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    loss = SoftBERTScoreLoss(encoder)
    loss(z, labels)
    loss.temperature, loss.matching_temperature = 0.3, 0.05
    expected = SoftBERTScoreLoss(encoder, temperature=0.3, matching_temperature=0.05)(z, labels)
    assert torch.equal(loss(z, labels), expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_logits_that_are_token_ids_are_an_error(encoder, dtype):
    loss, labels = SoftBERTScoreLoss(encoder), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(TypeError, match=rf"logits must be a floating-point tensor, got {dtype}"):
        loss(torch.ones(1, 3, 30522, dtype=dtype), labels)
    with pytest.raises(TypeError, match=rf"hidden must be a floating-point tensor, got {dtype}"):
        loss.forward_hidden(torch.ones(1, 3, 8, dtype=dtype), torch.nn.Linear(8, 30522), labels)
    with pytest.raises(TypeError, match=r"logits must be a floating-point tensor, got a CausalLMOutput: pass its"):
        loss(CausalLMOutput(logits=torch.zeros(1, 3, 30522)), labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_labels_that_are_not_integers_are_an_error(encoder, dtype):
    loss, labels = SoftBERTScoreLoss(encoder), torch.ones(1, 3, dtype=dtype)
    with pytest.raises(TypeError, match=rf"target must hold token ids as integers, got {dtype}: pass labels.long\(\)"):
        loss(torch.zeros(1, 3, 30522), labels)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16])
def test_labels_of_any_integer_type_give_the_same_loss(encoder, dtype):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    loss = SoftBERTScoreLoss(encoder)
    assert torch.equal(loss(z, labels.to(dtype)), loss(z, labels))


def test_unshifted_logits_of_causal_models_are_recognised(encoder):
    labels = torch.arange(2000, 2024)[None]
    following = 9.0 * one_hot(labels + 1, 30522).float()
    loss = SoftBERTScoreLoss(encoder)
    with pytest.warns(UserWarning, match=r"next label at 23 of 23 positions.*logits\[:, :-1\] and labels\[:, 1:\]"):
        loss(following, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(following, labels)  # once per loss
        SoftBERTScoreLoss(encoder)(following[:, :-1], labels[:, 1:])
        SoftBERTScoreLoss(encoder)(torch.zeros(1, 24, 30522), labels)


def test_bad_targets_say_what_is_wrong(encoder):
    loss = SoftBERTScoreLoss(encoder)
    logits = torch.zeros(1, 3, 30522)
    with pytest.raises(ValueError, match="outside the vocabulary of 30522"):
        loss(logits, torch.tensor([[1000, 30522, 1001]]))
    with pytest.raises(ValueError, match="ignore_index=-100"):
        loss(logits, torch.tensor([[1000, -1, 1001]]))
    with pytest.raises(TypeError, match=r"target\[0\] must be a string"):
        loss(logits, [[1]])
    with pytest.raises(ValueError, match="at least one row"):
        loss(logits[:0], torch.empty(0, 3, dtype=torch.long))


def test_long_target_texts_are_cut_with_a_warning(encoder):
    with pytest.warns(UserWarning, match="1 target text is longer than 512 tokens"):
        SoftBERTScoreLoss(encoder)(torch.zeros(1, 3, 30522), ["word " * 600])
