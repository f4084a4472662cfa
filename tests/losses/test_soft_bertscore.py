"""SoftBERTScoreLoss: equal to the metric where predictions are certain, and everywhere else to the formula."""

import copy
import math

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.models import tiny_model
from tests.support.soft_predictions import (
    COMPONENTS,
    CPU,
    IGNORE,
    TEXTS,
    certain,
    equally_long,
    grad_of,
    labels_of,
    near_labels,
    noise,
    tiny,
)

pytestmark = pytest.mark.usefixtures("one_thread")


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


def plain_match(row, how, v):
    top = max(row)
    weights = [math.exp((s - top) / v) for s in row]
    if how == "max":
        return top
    return sum(w * s for w, s in zip(weights, row, strict=True)) / sum(weights)


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
        ("bert", "max", 1.0, 0.1),
        *((family, "softmax", 1.0, 0.1) for family in ("roberta", "mpnet", "electra", "distilbert", "deberta-v2")),
    ],
)
@torch.no_grad()
def test_equals_the_formula_written_as_loops(family, matching, u, v):
    encoder = tiny(family)
    end = encoder.tokenizer.end_ids[0]
    start, pad = encoder.tokenizer.tokenizer.cls_token_id, encoder.tokenizer.tokenizer.pad_token_id
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


def test_owns_no_parameters_modules_or_state(encoder):
    loss = SoftBERTScoreLoss(encoder).train().to(torch.float64)
    assert list(loss.parameters()) == list(loss.buffers()) == list(loss.children()) == []
    assert not loss.state_dict()
    assert not encoder.backbone(CPU).training
    assert encoder.embedding_table(CPU).dtype == torch.float32


def test_one_encoder_in_memory(minilm, encoder):
    metric = BERTScore(FrozenEncoder(minilm, num_layers=5))
    by_path, by_metric = SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=5)), SoftBERTScoreLoss(metric.encoder)
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
