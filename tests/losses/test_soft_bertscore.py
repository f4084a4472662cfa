"""SoftBERTScoreLoss: the metric's score of certain predictions, and everywhere else the formula."""

import copy
import math
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchmetrics import SumMetric

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.core.matching import TOKENWISE_MATCHINGS
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from bertscore_tm.scoring.token_weights import token_weights
from tests.support.models import tiny_model
from tests.support.soft_predictions import (
    COMPONENTS,
    CPU,
    IGNORE,
    MATCHINGS,
    SHARP,
    TEXTS,
    assert_scores,
    certain,
    equally_long,
    grad_of,
    labels_of,
    near_labels,
    noise,
    scores_of_certain_predictions,
    tiny,
)
from tests.support.texts import several_references

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


@pytest.fixture
def short(pairs):
    """Real pairs, cut after a few words, as the tiny models have few positions."""
    return [[" ".join(text.split()[: 4 + i % 9]) for i, text in enumerate(side)] for side in pairs]


@pytest.fixture
def corpus(short):
    """Candidates, ragged lists of references, and texts to count in."""
    return short[0][:12], several_references(short[1][:12]), short[1][5:60]


# One of each form of special tokens. Soft tokens of every family are compared with ids in the encoder's tests.
FORMS = ["bert", "roberta", "mpnet", "deberta-v2", "mbart", "t5", "xlnet", "xlm", "gpt2", "opt", "llama", "gemma"]
FORMS += ["blenderbot", "prophetnet", "modernbert"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FORMS)
def test_every_form_of_special_tokens(corpus, family):
    candidates, references, texts = corpus
    encoder = tiny(family, "float32")
    largest = 0.0
    for matching, idf in zip(MATCHINGS, (False, texts), strict=True):
        expected = bert_score(candidates, references, encoder, idf=idf)
        assert expected["f1"].std() > 1e-3
        loss = SoftBERTScoreLoss(encoder, matching=matching, idf=idf, **SHARP)
        scores = scores_of_certain_predictions(loss, candidates, references, "texts", step=6)
        assert_scores(scores, expected)
        assert_scores({name: scores[f"teacher_forced_{name}"] for name in COMPONENTS}, expected)
        largest = max(largest, *((scores[name] - expected[name]).abs().max().item() for name in COMPONENTS))
    print(f"{family}: {largest:.1e}")


# Weights


def known_weights(encoder, corpus):
    metric = BERTScore(encoder, idf=True)
    metric.update(corpus, corpus)
    counted = token_weights(encoder, corpus)
    # All ids have a weight: special tokens too, which then count.
    mapping = {token: 0.5 + weight for token, weight in enumerate(counted.table.tolist())}
    default = defaultdict(lambda: 2.0, dict.fromkeys(range(0, 800, 2), 3.0))
    return {
        "texts": (corpus, corpus),
        "metric": (metric, corpus),
        "mapping": (mapping, mapping),
        "default": (default, default),
        "weights": (counted, corpus),
    }


@pytest.mark.parametrize("kind", ["texts", "metric", "mapping", "default", "weights"])
@pytest.mark.parametrize("target", ["ids", "texts"])
def test_weights(short, kind, target):
    encoder = tiny("bert", "float32")
    idf, equal = known_weights(encoder, short[1][:50])[kind]
    candidates, references = equally_long(encoder, short[0][:9], short[1][:9])
    assert len(candidates) >= 6
    labels = labels_of(encoder, candidates)
    args = (labels_of(encoder, references),) if target == "ids" else (references, labels != IGNORE)
    expected = bert_score(candidates, references, encoder, idf=equal)
    loss = SoftBERTScoreLoss(encoder, matching="max", idf=idf, **SHARP)
    scores = loss(certain(encoder, labels), *args, return_components=True)[1]
    assert_scores(scores, expected, 1e-6)
    assert not torch.allclose(expected["f1"], bert_score(candidates, references, encoder)["f1"], atol=1e-3)


@pytest.mark.parametrize("relaxation", ["softmax", "gumbel"])
def test_weights_have_no_gradient(relaxation):
    """A model must not be able to lower its loss by predicting tokens that weigh less."""
    encoder, seen = tiny("bert"), []

    def matching(similarities, candidate, reference, temperature):
        seen.append((similarities, candidate.weights))
        return TOKENWISE_MATCHINGS["max"](similarities, candidate, reference, temperature)

    idf = {token: 1.0 + (token % 7) for token in range(800)}
    loss = SoftBERTScoreLoss(encoder, relaxation=relaxation, matching=matching, idf=idf, component="precision")
    logits = noise(encoder, 1, 3, dtype=torch.float64, scale=1.0).requires_grad_()
    loss(logits, torch.tensor([[50, 60, 70]])).backward()
    [(similarities, weights)] = seen
    assert similarities.requires_grad
    assert not weights.requires_grad
    # Expected weights, between the largest and the smallest of a token.
    assert 1 < weights.unique().max() < 7
    assert logits.grad.any()


def test_weights_that_cannot_be(encoder):
    with pytest.raises(TypeError, match=r"got .*SumMetric"):
        SoftBERTScoreLoss(encoder, idf=SumMetric())
    with pytest.raises(TypeError, match="idf=True weights tokens by the references, which are not known"):
        SoftBERTScoreLoss(encoder, idf=True)
    with pytest.raises(ValueError, match=r"no weight for 30521 of 30522 tokens.*default"):
        SoftBERTScoreLoss(encoder, idf={5: 1.0})
    with pytest.raises(ValueError, match="none yet: call update"):
        SoftBERTScoreLoss(encoder, idf=BERTScore(encoder, idf=True))
    with pytest.raises(ValueError, match=r"weights of 30522 tokens, the encoder .* has 800"):
        SoftBERTScoreLoss(tiny(), idf=token_weights(encoder))
    with pytest.raises(ValueError, match="empty"):
        SoftBERTScoreLoss(encoder, idf=[])


# Several references


def test_mean_over_references(short):
    encoder = tiny("roberta", "float32")
    candidates, references = short[0][:5], several_references(short[1][:5])
    loss = SoftBERTScoreLoss(encoder, matching="max", references_reduce="mean", **SHARP)
    scores = scores_of_certain_predictions(loss, candidates, references, "texts")
    for i, several in enumerate(references):
        each = bert_score([candidates[i]] * len(several), several, encoder)
        for name in COMPONENTS:
            assert scores[name][i].item() == pytest.approx(each[name].mean().item(), abs=1e-6)


def test_gradient_of_the_best_reference_alone():
    encoder = tiny()
    labels = labels_of(encoder, ["a cat sat", "it rains"])
    logits = noise(encoder, *labels.shape, dtype=torch.float64)
    lists = [["a cat sat", "the dog"], ["snow", "it rains", "rain"]]
    several = SoftBERTScoreLoss(encoder, reduction="none")
    values, gradients = {}, {}
    for name, target in [("several", lists), *(("one", [a, b]) for a in lists[0] for b in lists[1])]:
        z = logits.clone().requires_grad_()
        value = several(z, target, labels != IGNORE)
        value.sum().backward()
        key = name if name == "several" else tuple(target)
        values[key], gradients[key] = value.detach(), z.grad
    for item in range(2):
        best = min((key for key in values if key != "several"), key=lambda key: values[key][item].item())
        assert values["several"][item].item() == pytest.approx(values[best][item].item(), abs=1e-12)
        assert torch.allclose(gradients["several"][item], gradients[best][item], atol=1e-12)


def test_references_encoded_ahead(encoder, pairs):
    labels = labels_of(encoder, pairs[0][:4])
    references = several_references(pairs[1][:4])
    loss = SoftBERTScoreLoss(encoder)
    ahead = loss.encode_references(references)
    logits = certain(encoder, labels, 8.0)
    assert torch.equal(loss(logits, ahead, labels != IGNORE), loss(logits, references, labels != IGNORE))
    with pytest.raises(ValueError, match="references of 4 items, the batch has 2"):
        loss(logits[:2], ahead)


def test_references_that_cannot_be(encoder):
    loss = SoftBERTScoreLoss(encoder)
    logits = torch.zeros(2, 3, 30522)
    for target, error, said in (
        (["a"], ValueError, "a list of 2 texts or lists of texts.*got 1"),
        ("ab", ValueError, "2 texts"),
        (7, ValueError, "2 texts"),
        ([["a"], []], ValueError, r"target\[1\] is an empty list"),
        (["a", 3], TypeError, r"target\[1\] must be a string"),
        (["a", ["b", None]], TypeError, r"target\[1\] must be a string or a list of strings"),
        (np.ones((2, 3), int), ValueError, r"got a single numpy.ndarray: pass labels as a tensor, such as torch.as"),
        ([[5, 6, 7], [5, 6, 7]], TypeError, r"got \[5, 6, 7\] \(list\): pass labels as a tensor"),
        (np.array(["a", "b"]), ValueError, r"got a single numpy.ndarray: pass its tolist\(\)"),
        (pa.array(["a", "b"]), ValueError, r"got a single pyarrow.lib.StringArray: pass its tolist\(\)"),
        (b"ab", ValueError, r"got a single b'ab' \(bytes\): decode bytes to a string first"),
        (["a", b"b"], TypeError, r"target\[1\] must be .* got b'b' \(bytes\): decode bytes to a string first"),
        (["a", ["b", b"c"]], TypeError, r"target\[1\] must be .* got b'c' \(bytes\): decode bytes to a string first"),
    ):
        with pytest.raises(error, match=said):
            loss(logits, target)
    with pytest.raises(ValueError, match="got a tensor: pass labels to forward"):
        loss.encode_references(torch.ones(2, 3).long())


# Encoders and devices


def test_forward_functions_of_ids_are_refused():
    model, tokenizer = tiny_model("bert")
    encoder = FrozenEncoder(model, tokenizer, forward_fn=lambda net, batch: net(**batch).last_hidden_state)
    with pytest.raises(ValueError, match="takes input_ids: pass a model that transformers knows"):
        SoftBERTScoreLoss(encoder)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_same_loss_on_a_gpu(minilm):
    loss = SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=5))
    labels = labels_of(loss.encoder)
    results = [grad_of(loss, noise(loss.encoder, *labels.shape).to(d), labels.to(d)) for d in ("cpu", "cuda")]
    torch.testing.assert_close(results[0], tuple(x.cpu() for x in results[1]), atol=1e-4, rtol=1e-3)
