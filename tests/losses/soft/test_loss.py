"""SoftBERTScoreLoss: the metric's score of certain predictions, elsewhere the formula; settings, copies and errors."""

import copy
import gc
import math
import pickle
import warnings
from collections import defaultdict

import pytest
import torch
from torch.nn.functional import one_hot

from bertscore_tm import FrozenEncoder
from bertscore_tm.encoder.soft_tokens import embedding_table
from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss, VocabularyBridge
from bertscore_tm.matching.greedy import TOKENWISE_MATCHINGS
from bertscore_tm.scoring.idf import token_weights
from tests.support.losses import TARGET, blank_ids, make_loss, relax_by_gumbel, spread
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
    normal,
    relax,
    scores_of_certain_predictions,
    tiny,
)
from tests.support.texts import several_references


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
    f1 = min(precision, recall)
    if f1 > 0:
        f1 = 2 * precision * recall / (precision + recall)
    return precision, recall, f1


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
    start = encoder.tokenizer.tokenizer.cls_token_id
    pad = encoder.tokenizer.tokenizer.pad_token_id
    target = torch.tensor([[start, 50, 60, 70, 80, 90, end, 33], [IGNORE, 51, IGNORE, 61, 71, end, pad, pad]])
    where = [[1, 2, 3, 4, 5], [1, 3, 4]]
    z = noise(encoder, *target.shape, dtype=torch.float64)
    loss = SoftBERTScoreLoss(encoder, temperature=u, matching=matching, matching_temperature=v, reduction="none")
    value, components = loss(z, target, return_components=True)

    for row, positions in enumerate(where):
        logits = z[row, positions]
        labels = target[row, positions].tolist()
        expected = plain_scores(family, logits, labels, u, v, matching)
        hard = plain_scores(family, logits, labels, u, v, "max")
        for name, plain, plain_hard in zip(COMPONENTS, expected, hard, strict=True):
            assert components[name][row].item() == pytest.approx(plain, abs=1e-12)
            assert components[f"teacher_forced_{name}"][row].item() == pytest.approx(plain_hard, abs=1e-12)
        assert value[row].item() == pytest.approx(1 - expected[2], abs=1e-12)


def test_owns_no_parameters_modules_or_state(encoder):
    loss = SoftBERTScoreLoss(encoder).train().to(torch.float64)

    assert list(loss.parameters()) == list(loss.buffers()) == list(loss.children()) == []
    assert not loss.state_dict()
    assert not encoder.backbone(CPU).training
    assert embedding_table(encoder, CPU).dtype == torch.float32


@pytest.fixture
def short(pairs):
    """Real pairs, cut after a few words, as the tiny models have few positions."""
    sides = []
    for side in pairs:
        sides.append([" ".join(text.split()[: 4 + i % 9]) for i, text in enumerate(side)])
    return sides


# One of each form of special tokens. Soft tokens of every family are compared with ids in the encoder's tests.
FORMS = ["bert", "roberta", "mpnet", "deberta-v2", "mbart", "t5", "xlnet", "xlm", "gpt2", "opt", "llama", "gemma"]
FORMS += ["blenderbot", "prophetnet", "modernbert"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FORMS)
def test_every_form_of_special_tokens(short, family):
    candidates = short[0][:12]
    references = several_references(short[1][:12])
    texts = short[1][5:60]
    encoder = tiny(family, "float32")

    for matching, idf in zip(MATCHINGS, (False, texts), strict=True):
        expected = bert_score(candidates, references, encoder, idf=idf)
        assert expected["f1"].std() > 1e-3
        loss = SoftBERTScoreLoss(encoder, matching=matching, idf=idf, **SHARP)
        scores = scores_of_certain_predictions(loss, candidates, references)
        assert_scores(scores, expected)
        assert_scores({name: scores[f"teacher_forced_{name}"] for name in COMPONENTS}, expected)


# All ids have a weight in the mapping: special tokens too, which then count.
@pytest.mark.parametrize(
    ("idf", "component"),
    [
        ("texts", "f1"),
        ({token: 0.5 + token % 5 for token in range(800)}, "recall"),
        (defaultdict(lambda: 2.0, dict.fromkeys(range(0, 800, 2), 3.0)), "precision"),
    ],
    ids=["texts", "mapping", "default"],
)
@pytest.mark.parametrize("target", ["ids", "texts"])
def test_weights_and_the_component(short, idf, component, target):
    encoder = tiny("bert", "float32")
    if idf == "texts":
        idf = short[1][:50]
    candidates, references = equally_long(encoder, short[0][:9], short[1][:9])
    labels = labels_of(encoder, candidates)
    if target == "ids":
        args = (labels_of(encoder, references),)
    else:
        args = (references, labels != IGNORE)
    plain = bert_score(candidates, references, encoder)
    expected = bert_score(candidates, references, encoder, idf=idf)
    loss = SoftBERTScoreLoss(encoder, matching="max", idf=idf, component=component, **SHARP)

    value, scores = loss(certain(encoder, labels), *args, return_components=True)

    assert len(candidates) >= 6
    assert_scores(scores, expected, 1e-6)
    assert torch.allclose(1 - value, expected[component], atol=1e-6)
    assert not torch.allclose(expected["precision"], expected["recall"], atol=1e-3)
    assert not torch.allclose(expected["f1"], plain["f1"], atol=1e-3)


@pytest.mark.parametrize("relaxation", ["softmax", relax])
def test_weights_have_no_gradient(relaxation):
    """A model must not be able to lower its loss by predicting tokens that weigh less."""
    encoder = tiny("bert")
    seen = []

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
    with pytest.raises(TypeError, match="idf=True weights tokens by the references, which are not known"):
        SoftBERTScoreLoss(encoder, idf=True)
    with pytest.raises(ValueError, match=r"no weight for 30521 of 30522 tokens.*default"):
        SoftBERTScoreLoss(encoder, idf={5: 1.0})
    with pytest.raises(ValueError, match=r"weights of 30522 tokens, the encoder .* has 800"):
        SoftBERTScoreLoss(tiny(), idf=token_weights(encoder))


def test_mean_over_references(short):
    encoder = tiny("roberta", "float32")
    candidates = short[0][:5]
    references = several_references(short[1][:5])
    loss = SoftBERTScoreLoss(encoder, matching="max", references_reduce="mean", **SHARP)
    scores = scores_of_certain_predictions(loss, candidates, references)

    for i, texts in enumerate(references):
        each = bert_score([candidates[i]] * len(texts), texts, encoder)
        for name in COMPONENTS:
            assert scores[name][i].item() == pytest.approx(each[name].mean().item(), abs=1e-6)


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_blank_references_next_to_others_are_left_out(encoder, reduce):
    labels = labels_of(encoder, ["a cat sat", "it rains", "no"])
    loss = SoftBERTScoreLoss(encoder, references_reduce=reduce, reduction="none")
    logits = near_labels(encoder, labels)
    value = loss(logits, [["the cat", ""], [" ", "rain", "snow", "\n"], ["", ""]], labels != IGNORE)

    assert torch.equal(value, loss(logits, [["the cat"], ["rain", "snow"], [""]], labels != IGNORE))
    assert value[2] == 1


def test_gradient_of_the_best_reference_alone():
    encoder = tiny()
    labels = labels_of(encoder, ["a cat sat", "it rains"])
    logits = noise(encoder, *labels.shape, dtype=torch.float64)
    lists = [["a cat sat", "the dog"], ["snow", "it rains", "rain"]]
    loss = SoftBERTScoreLoss(encoder, reduction="none")
    values, gradients = grad_of(loss, logits, lists, labels != IGNORE)
    alone = [grad_of(loss, logits, [a, b], labels != IGNORE) for a in lists[0] for b in lists[1]]

    for item in range(2):
        value, gradient = min(alone, key=lambda result: result[0][item].item())
        assert values[item].item() == pytest.approx(value[item].item(), abs=1e-12)
        assert torch.allclose(gradients[item], gradient[item], atol=1e-12)


def test_references_encoded_ahead(encoder, pairs):
    labels = labels_of(encoder, pairs[0][:4])
    references = several_references(pairs[1][:4])
    loss = SoftBERTScoreLoss(encoder)
    ahead = loss.encode_references(references)
    logits = certain(encoder, labels, 8.0)

    assert torch.equal(loss(logits, ahead, labels != IGNORE), loss(logits, references, labels != IGNORE))
    with pytest.raises(ValueError, match="for each of the 2 rows of the predictions, got 4"):
        loss(logits[:2], ahead)
    with torch.inference_mode():
        in_validation = loss.encode_references(references)
    expected = grad_of(loss, logits, references, labels != IGNORE)
    torch.testing.assert_close(grad_of(loss, logits, in_validation, labels != IGNORE), expected)
    # Validations, which use another cache, must not change training.
    target = ["a target of the loss alone"]
    loss.encode_references(target)
    assert len(encoder.cache("cpu", of_losses=True).get(target)) == 1
    assert len(encoder.cache("cpu", of_losses=False).get(target)) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_same_loss_on_a_gpu(minilm):
    loss = SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=5))
    labels = labels_of(loss.encoder)
    results = [grad_of(loss, noise(loss.encoder, *labels.shape).to(d), labels.to(d)) for d in ("cpu", "cuda")]

    torch.testing.assert_close(results[0], tuple(x.cpu() for x in results[1]), atol=1e-4, rtol=1e-3)


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
    message = r"9 tokens.* takes 8 and its special tokens\. .* truncation=True and max_length=8; .* end the mask there"
    with pytest.raises(ValueError, match=message):
        loss(z, *((TEXTS, too_long != IGNORE) if as_texts else (too_long,)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
@pytest.mark.parametrize("ready", [False, True])
def test_copies_and_pickles(encoder, ready, copied):
    encoder = tiny("bert", "float32") if ready else encoder
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    settings = {"temperature": 0.7, "matching": "max", "matching_temperature": 0.2, "component": "recall"}
    loss = SoftBERTScoreLoss(encoder, reduction="sum", **settings)
    other = copied(loss)

    # Not bit by bit: the order of sums can depend on where the copied weights lie in memory.
    assert loss(z, labels).item() == pytest.approx(other(z, labels).item(), abs=1e-6)
    assert repr(loss) == repr(other)
    for part in (f"layer {encoder.num_layers}", "temperature=0.7", "matching='max'", "component='recall'"):
        assert part in repr(loss)
    if not ready:  # the tokenizer alone
        assert len(pickle.dumps(loss)) < embedding_table(encoder, CPU).nbytes / 20
    # Temperatures can be annealed, and labels be of any integer type.
    other.temperature = 0.3
    other.matching_temperature = 0.05
    settings |= {"temperature": 0.3, "matching_temperature": 0.05}
    expected = SoftBERTScoreLoss(encoder, reduction="sum", **settings)(z, labels)
    assert other(z, labels.int()).item() == pytest.approx(expected.item(), abs=1e-6)


def test_unshifted_logits_of_causal_models_are_recognised(encoder):
    labels = torch.arange(2000, 2024)[None]
    following = 9.0 * one_hot(labels + 1, 30522).float()
    loss = SoftBERTScoreLoss(encoder)

    with pytest.warns(UserWarning, match=r"next label at 23 of 23 positions.*logits\[:, :-1\], .* and labels\[:, 1:\]"):
        loss(following, labels)
    with warnings.catch_warnings(action="error"):
        loss(following, labels)  # once per loss
        SoftBERTScoreLoss(encoder)(following[:, :-1], labels[:, 1:])
        SoftBERTScoreLoss(encoder)(torch.zeros(1, 24, 30522), labels)


def test_unshifted_states_of_a_trained_generator_are_recognised(encoder):
    labels = torch.arange(2000, 2024)[None]
    head = torch.nn.Linear(24, 30522, bias=False)
    with torch.no_grad():
        head.weight.zero_()[torch.arange(2001, 2025), torch.arange(24)] = 9.0
    following = torch.eye(24)[None]
    loss = SoftBERTScoreLoss(encoder)
    hidden_loss = SoftBERTScoreLoss(encoder)
    said = r"next label at 23 of 23 positions.*hidden\[:, :-1\], and labels"

    with pytest.warns(UserWarning, match=said):
        hidden_loss.forward_hidden(following, head, labels)
    with warnings.catch_warnings(action="error"), torch.no_grad():
        for _ in range(9):
            loss(torch.zeros(1, 24, 30522), labels)
    with pytest.warns(UserWarning, match=said):
        loss(head(following), labels)


def test_a_bridge_has_the_table_of_the_losses_encoder():
    """Though it was built for another model with the same tokenizer."""
    model, tokenizer = tiny_model("bert")
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.get_input_embeddings().weight.copy_(normal(*changed.get_input_embeddings().weight.shape))
    first, second = (FrozenEncoder(part, tokenizer, num_layers=2) for part in (model, changed))
    loss = SoftBERTScoreLoss(second, VocabularyBridge(tokenizer, first), matching="max")
    labels = labels_of(second)

    assert loss(certain(second, labels), labels).item() == pytest.approx(0, abs=1e-5)


def test_references_that_another_encoder_encoded_are_refused(minilm):
    first, second = (SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=layer)) for layer in (1, 2))
    labels = labels_of(first.encoder)
    logits = certain(first.encoder, labels)
    references = first.encode_references(TEXTS)

    assert SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=1))(logits, references, labels != IGNORE).isfinite()
    with pytest.raises(
        ValueError, match=r"target was encoded by FrozenEncoder\(.*layer 1.*but this loss has .*layer 2"
    ):
        second(logits, references, labels != IGNORE)


def test_long_target_texts_are_cut_with_a_warning(encoder):
    with pytest.warns(UserWarning, match="1 target text is longer than 512 tokens"):
        SoftBERTScoreLoss(encoder)(torch.zeros(1, 3, 30522), ["word " * 600])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"matching": "hungarian"}, "matching='hungarian'"),
        ({"component": "f2"}, "component='f2'"),
        ({"reduction": "median"}, "reduction='median'"),
        ({"references_reduce": "sum"}, "references_reduce='sum'"),
        *(({name: 0.0}, f"{name} must be above 0") for name in ("temperature", "matching_temperature")),
        ({"relaxation": "argmax"}, "relaxation='argmax' is not a callable or one of 'softmax'"),
    ],
    ids=str,
)
def test_impossible_settings(encoder, settings, said):
    with pytest.raises(ValueError, match=said):
        SoftBERTScoreLoss(encoder, **settings)


def test_impossible_encoders():
    model, tokenizer = tiny_model("bert")
    encoder = FrozenEncoder(model, tokenizer, forward_fn=lambda net, batch: net(**batch).last_hidden_state)

    with pytest.raises(ValueError, match="takes input_ids only"):
        SoftBERTScoreLoss(encoder)


IDS, SIZE = torch.ones(2, 3, dtype=torch.long), (2, 3, 30522)


@pytest.mark.parametrize(
    ("shape", "args", "error", "said"),
    [
        ((3, 30522), (IDS[0],), ValueError, r"\(3, 30522\)"),
        ((0, 3, 30522), (IDS[:0],), ValueError, r"with at least one row, got \(0, 3, 30522\)"),
        ((0, 3, 30522), ([],), ValueError, r"with at least one row, got \(0, 3, 30522\)"),
        ((2, 3, 50265), (IDS,), ValueError, "50265.*30522"),
        (SIZE, (torch.ones(2, 4).long(),), ValueError, r"target.*\(2, 3\).*\(2, 4\)"),
        (SIZE, (IDS * 30522,), ValueError, "outside the vocabulary of 30522"),
        (SIZE, (-IDS,), ValueError, "ignore_index=-100"),
        (SIZE, (IDS, torch.ones(2, 4)), ValueError, r"mask.*\(2, 3\).*\(2, 4\)"),
        (SIZE, (["a"],), ValueError, "a text or a list of texts for each of the 2 rows of the predictions, got 1"),
        (SIZE, ([],), ValueError, "target has no texts. Pass one or several for each row"),
        (SIZE, ("ab",), TypeError, "target is a single string: pass a list of texts"),
        (SIZE, ([["a"], []],), ValueError, r"target\[1\] is empty: every candidate needs"),
        (SIZE, (IDS.numpy(),), TypeError, r"target must be texts, got ndarray of shape \(2, 3\): decode token ids"),
    ],
)
def test_inputs_that_cannot_be(encoder, shape, args, error, said):
    with pytest.raises(error, match=said):
        SoftBERTScoreLoss(encoder)(torch.zeros(shape), *args)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("bert", {"matching": matching}) for matching in MATCHINGS),
        ("bert", {"relaxation": relax_by_gumbel}),
        ("bert", {"component": "precision"}),
        ("bert", {"component": "recall"}),
        ("roberta", {"idf": dict.fromkeys(range(800), 1.0)}),
        ("mean", {}),
        ("expand", {}),
    ],
)
def test_gradcheck(kind, options):
    loss = make_loss(kind, temperature=0.8, reduction="none", **options)
    tokens = loss.bridge or loss.encoder
    base = noise(tokens, 2, 5, dtype=torch.float64) + certain(tokens, TARGET, 4.0)
    # Expected weights have no gradient, so they must not change.
    base[..., blank_ids(loss)] -= 60
    directions = noise(tokens, 4, 2, 5, dtype=torch.float64, seed=1)

    def along(x):
        torch.manual_seed(3)
        return loss(base + torch.einsum("k,kbtv->btv", x, directions), TARGET)

    x = torch.full((4,), 0.01, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(along(x).sum(), x)

    assert gradient.abs().max() > 1e-3
    assert torch.autograd.gradcheck(along, x, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_no_gradient_and_no_memory_stay_with_the_encoder(encoder):
    labels = labels_of(encoder)
    loss = SoftBERTScoreLoss(encoder)
    z = near_labels(encoder, labels)

    def living():
        gc.collect()
        return sum(1 for thing in gc.get_objects() if isinstance(thing, torch.Tensor))

    for _ in range(2):
        grad_of(loss, z, labels)
    before = living()
    for _ in range(3):
        grad_of(loss, z, labels)

    assert living() <= before  # fewer, if what other tests left is collected meanwhile
    backbone = encoder.backbone(CPU)
    assert not any(p.requires_grad or p.grad is not None for p in backbone.parameters())


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
def test_padding_changes_nothing(place, filler, options):
    encoder = tiny("bert", "float32")
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    loss = SoftBERTScoreLoss(encoder, reduction="none", **options)
    value, gradient = grad_of(loss, z, labels)
    places = [place(i) for i in range(labels.shape[1])]
    width = places[-1] + 5
    hf_tokenizer = encoder.tokenizer.tokenizer
    filler = {"pad": hf_tokenizer.pad_token_id, "cls": hf_tokenizer.cls_token_id}.get(filler, filler)
    wide, wide_labels = spread(encoder, z, labels, places, width, filler)
    wide[:, [i for i in range(width) if i not in places]] = torch.nan  # a model may compute anything there
    wide_value, wide_gradient = grad_of(loss, wide, wide_labels)

    assert torch.allclose(wide_value, value, rtol=0, atol=1e-6)
    assert torch.allclose(wide_gradient[:, places], gradient, rtol=0, atol=1e-6)
    wide_gradient[:, places] = 0
    assert (wide_gradient == 0).all()


@pytest.mark.parametrize(("matching", "component"), [("max", "f1"), ("softmax", "precision")])
@pytest.mark.parametrize("missing", ["mask", "labels", "end token", "masked text", "blank text"])
def test_rows_without_content_leave_the_mean(matching, component, missing):
    encoder = tiny("bert", "float32")
    labels = labels_of(encoder)
    z = noise(encoder, *labels.shape)
    options = {"matching": matching, "component": component}
    loss = SoftBERTScoreLoss(encoder, reduction="none", **options)
    expected, expected_gradient = grad_of(loss, z, labels)
    mask = torch.tensor([[True], [False], [True]]).expand(labels.shape)
    args = {
        "mask": (labels, mask),
        "labels": (labels.masked_fill(~mask, IGNORE),),
        "end token": (torch.where(mask, labels, torch.tensor(encoder.tokenizer.end_ids[0])),),
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
def test_autocast_changes_nothing(dtype):
    encoder = tiny("bert", "float32")
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


@pytest.mark.filterwarnings("ignore:this processor has no bfloat16 instructions")
def test_bfloat16_encoder_is_close(minilm, encoder):
    labels = labels_of(encoder)
    z = near_labels(encoder, labels)
    value, gradient = grad_of(SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=5, dtype="bfloat16")), z, labels)
    exact, exact_gradient = grad_of(SoftBERTScoreLoss(encoder), z, labels)

    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), abs=5e-3)
    assert torch.cosine_similarity(gradient.flatten(), exact_gradient.flatten(), dim=0) > 0.99
