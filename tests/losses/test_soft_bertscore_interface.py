"""SoftBERTScoreLoss: reductions, settings, copies, and errors that say what is wrong."""

import copy
import pickle
import warnings

import pytest
import torch
from torch.nn.functional import one_hot
from transformers.modeling_outputs import CausalLMOutput

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import COMPONENTS, CPU, IGNORE, TEXTS, grad_of, labels_of, near_labels, noise, tiny

pytestmark = pytest.mark.usefixtures("one_thread")


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
        ({"relaxation": "argmax"}, "relaxation='argmax' is not a callable or one of 'softmax', 'gumbel'"),
    ],
    ids=str,
)
def test_impossible_settings(encoder, settings, said):
    with pytest.raises(ValueError, match=said):
        SoftBERTScoreLoss(encoder, **settings)


def test_generator_with_the_same_vocabulary_needs_no_other_table(encoder):
    loss = SoftBERTScoreLoss(encoder, tokenizer=encoder.tokenizer.tokenizer)
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
    message = r"9 tokens.* takes 8 and its special tokens: .* truncation=True and max_length=8 .* examples/loss.md"
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
