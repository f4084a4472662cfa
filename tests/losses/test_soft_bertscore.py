"""SoftBERTScoreLoss: equal to the metric where predictions are certain, and everywhere else to the formula."""

import copy
import math

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
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
    equally_long,
    grad_of,
    labels_of,
    near_labels,
    noise,
    scores_of_certain_predictions,
    tiny,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- certain predictions have the metric's score


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


# --- the formula, written as loops


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


# --- gradients are right


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


# --- the encoder is frozen and shared


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
