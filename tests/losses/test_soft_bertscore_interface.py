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
from tests.support.soft_predictions import COMPONENTS, CPU, IGNORE, TEXTS, labels_of, near_labels, noise, tiny

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
        assert torch.equal(value, SoftBERTScoreLoss(encoder, reduction=reduction)(z, labels))
        assert value.requires_grad
        assert value.item() == pytest.approx(getattr(rows, reduction)().item(), rel=1e-6)
        assert components.keys() == rows_components.keys() == names
        for name, component in components.items():
            assert not component.requires_grad
            assert component.shape == ()
            assert component.item() == pytest.approx(getattr(rows_components[name], reduction)().item(), rel=1e-6)


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
    for part in (f"layer {encoder.num_layers}", "temperature=0.7", "matching='max'", "component='recall'"):
        assert part in repr(loss)
    if not ready:  # the tokenizer alone
        assert len(pickle.dumps(loss)) < encoder.embedding_table(CPU).nbytes / 20
    # Temperatures can be annealed, and labels be of any integer type.
    other.temperature, other.matching_temperature = 0.3, 0.05
    settings |= {"temperature": 0.3, "matching_temperature": 0.05}
    expected = SoftBERTScoreLoss(encoder, reduction="sum", **settings)(z, labels)
    assert other(z, labels.int()).item() == pytest.approx(expected.item(), abs=1e-6)


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


def test_long_target_texts_are_cut_with_a_warning(encoder):
    with pytest.warns(UserWarning, match="1 target text is longer than 512 tokens"):
        SoftBERTScoreLoss(encoder)(torch.zeros(1, 3, 30522), ["word " * 600])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"matching": "hungarian"}, "matching='hungarian'"),
        ({"component": "f2"}, "component='f2'"),
        ({"reduction": "median"}, "reduction='median'"),
        *(({name: value}, name) for name in ("temperature", "matching_temperature") for value in (0.0, float("nan"))),
        ({"relaxation": "argmax"}, "relaxation='argmax' is not a callable or one of 'softmax', 'gumbel'"),
    ],
    ids=str,
)
def test_impossible_settings(encoder, settings, said):
    with pytest.raises(ValueError, match=said):
        SoftBERTScoreLoss(encoder, **settings)


def test_all_layers_is_refused(minilm):
    with pytest.raises(ValueError, match="all_layers"):
        SoftBERTScoreLoss(FrozenEncoder(minilm, num_layers=1, all_layers=True))


IDS, SIZE = torch.ones(2, 3, dtype=torch.long), (2, 3, 30522)


@pytest.mark.parametrize(
    ("logits", "target", "mask", "error", "said"),
    [
        (torch.zeros(3, 30522), IDS[0], None, ValueError, r"\(3, 30522\)"),
        (torch.zeros(1, *SIZE), IDS[None], None, ValueError, "shape"),
        (torch.zeros(2, 3, 50265), IDS, None, ValueError, "50265.*30522"),
        (torch.zeros(0, 3, 30522), IDS[:0], None, ValueError, "at least one row"),
        (torch.ones(SIZE).long(), IDS, None, TypeError, "logits must be a floating-point tensor, got torch.int64"),
        (torch.ones(SIZE).bool(), IDS, None, TypeError, "logits must be a floating-point tensor, got torch.bool"),
        (CausalLMOutput(logits=torch.zeros(SIZE)), IDS, None, TypeError, "got a CausalLMOutput: pass its"),
        (torch.zeros(SIZE), torch.ones(2, 4).long(), None, ValueError, r"\(2, 3\).*\(2, 4\)"),
        (torch.zeros(SIZE), torch.ones(6).long(), None, ValueError, "target"),
        (torch.zeros(SIZE), IDS.float(), None, TypeError, r"integers, got torch.float32: pass labels.long\(\)"),
        (torch.zeros(SIZE), IDS.bool(), None, TypeError, r"integers, got torch.bool: pass labels.long\(\)"),
        (torch.zeros(SIZE), IDS * 30522, None, ValueError, "outside the vocabulary of 30522"),
        (torch.zeros(SIZE), -IDS, None, ValueError, "ignore_index=-100"),
        (torch.zeros(SIZE), IDS, torch.ones(2, 4), ValueError, r"mask.*\(2, 3\).*\(2, 4\)"),
        (torch.zeros(SIZE), ["a", "b"], torch.ones(3, 2), ValueError, "mask"),
    ],
)
def test_inputs_that_cannot_be(encoder, logits, target, mask, error, said):
    with pytest.raises(error, match=said):
        SoftBERTScoreLoss(encoder)(logits, target, mask)
