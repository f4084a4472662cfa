"""MinimumRiskLoss: the paper's formula, masks and gradients."""

import math

import pytest
import torch

from bertscore_tm.losses import MinimumRiskLoss
from tests.support.soft_predictions import normal

INF, NAN = math.inf, math.nan


def sequences(*shape, seed=0):
    """Log-probabilities of tokens, rewards, and a mask of sequences of different lengths, one token at least."""
    *counts, num_tokens = shape
    log_probs = normal(*shape, 7, dtype=torch.float64, seed=seed).log_softmax(-1)[..., 0]
    rewards = normal(*counts, dtype=torch.float64, seed=seed + 1).sigmoid()
    lengths = torch.randint(1, num_tokens + 1, counts, generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(num_tokens) < lengths[..., None]
    return log_probs, rewards, mask


def make_loss(reduction="mean"):
    return MinimumRiskLoss(0.3, reduction=reduction)


def slow_minimum_risk(log_probs, rewards, mask, alpha, normalize):
    """One item at a time, from probabilities as the paper writes it, over the candidates with tokens."""
    losses = []
    for item in range(len(rewards)):
        powers = []
        risks = []
        for k in range(rewards.shape[1]):
            tokens = log_probs[item, k][mask[item, k]]
            if len(tokens) == 0:
                continue
            exponent = alpha
            if normalize:
                exponent = alpha / len(tokens)
            powers.append(tokens.exp().prod() ** exponent)
            risks.append(powers[-1] * (1 - rewards[item, k]))
        losses.append(sum(risks) / sum(powers))
    return torch.stack(losses)


# Without gaps, and with a candidate without tokens, an item without candidates, and anything where the mask is False.
@pytest.mark.parametrize("anything", [None, -INF, NAN, 1e30])
@pytest.mark.parametrize(("alpha", "normalize"), [(0.005, None), (1.0, None), (4.0, None), (5.0, "length")])
def test_the_loss_is_the_formula_with_gradients(alpha, normalize, anything):
    log_probs, rewards, mask = sequences(5, 4, 6)
    items = [0, 1, 2, 3, 4]
    if anything is not None:
        mask[1, 2] = mask[3] = False
        items.remove(3)
        log_probs = log_probs.where(mask, anything)
        rewards = rewards.where(mask.any(-1), anything)
    log_probs.requires_grad_()
    expected = slow_minimum_risk(log_probs[items], rewards[items], mask[items], alpha, normalize)
    wanted = torch.autograd.grad(expected.sum(), log_probs)[0].where(mask, 0.0)
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        for reduction, value in (("none", expected), ("mean", expected.mean()), ("sum", expected.sum())):
            loss = MinimumRiskLoss(alpha, reduction=reduction, normalize=normalize)(log_probs, rewards, mask)
            if reduction == "none":
                assert (loss[[i for i in range(5) if i not in items]] == 0).all()
                loss = loss[items]
            torch.testing.assert_close(loss, value, rtol=1e-12, atol=1e-12)
            (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
            factor = 1 / len(items) if reduction == "mean" else 1
            torch.testing.assert_close(gradient, wanted * factor, rtol=1e-9, atol=1e-12)


def test_normalized_by_length():
    log_probs = torch.tensor([[[-1.0, -2.0, -3.0], [-4.0, -1.0, -9.0]]])
    rewards = torch.tensor([[0.9, 0.2]])
    loss = MinimumRiskLoss(normalize="length")

    assert "alpha=5.0" in repr(loss)
    assert "normalize='length'" in repr(loss)
    assert MinimumRiskLoss().alpha == 0.005
    whole = MinimumRiskLoss(3.0, normalize="length")(log_probs, rewards)
    torch.testing.assert_close(whole, MinimumRiskLoss(1.0)(log_probs, rewards))
    with pytest.raises(ValueError, match="normalize='words' is not one of 'length'"):
        MinimumRiskLoss(normalize="words")


@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4), (2, 3, 0)])
def test_nothing_at_all_gives_zero_and_no_gradient(shape):
    log_probs = torch.full(shape, -INF, requires_grad=True)

    for reduction in ("mean", "sum"):
        value = make_loss(reduction)(log_probs, torch.ones(shape[:-1]), torch.zeros(shape, dtype=torch.bool))
        assert value == 0
        value.backward()

    assert (log_probs.grad == 0).all()


def test_very_improbable_sequences_stay_finite():
    log_probs = torch.tensor([[[-5e4, -5e4], [-1e-4, -1e-4], [-3e38, -1.0]]], requires_grad=True)
    value = make_loss()(log_probs, torch.tensor([[0.2, 0.9, 0.5]]))
    value.backward()

    assert value.isfinite()
    assert log_probs.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    log_probs, rewards, mask = sequences(3, 4, 40)
    log_probs = log_probs.to(dtype)
    loss = make_loss()
    value = loss(log_probs, rewards, mask)

    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(log_probs.float(), rewards.float(), mask), rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(log_probs, rewards, mask), value)


def test_rewards_may_be_integers_masks_numbers_or_left_out():
    log_probs, rewards, mask = sequences(3, 4, 5)
    log_probs = log_probs.float()
    loss = make_loss()

    assert loss(log_probs, rewards, mask).dtype == torch.float32
    whole = torch.tensor([[1, 0, 0, 1]] * 3)
    assert torch.equal(loss(log_probs, whole, mask.long()), loss(log_probs, whole.float(), mask))
    assert torch.equal(loss(log_probs, rewards), loss(log_probs, rewards, torch.ones_like(mask)))


def test_compiles_into_one_graph():
    log_probs, rewards, mask = sequences(3, 4, 5)
    log_probs.requires_grad_()
    rewards.requires_grad_()
    loss = make_loss()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(log_probs, rewards, mask)

    torch.testing.assert_close(compiled, loss(log_probs, rewards, mask))
    compiled.backward()
    assert log_probs.grad.abs().max() > 0
    assert rewards.grad is None


@pytest.mark.parametrize("reward", [0.1, 123.4])
@pytest.mark.parametrize("seed", range(3))
def test_equal_rewards_give_no_gradient(reward, seed):
    log_probs = normal(2, 7, 3, 5, dtype=torch.float64, seed=seed).log_softmax(-1)[..., 0].requires_grad_()
    MinimumRiskLoss(1.0)(log_probs, torch.full((2, 7), reward)).backward()

    assert not log_probs.grad.any()


P, R = torch.full((2, 3, 4), -1.0), torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("log_probs", "rewards", "mask", "message"),
    [
        (P[..., None], R, None, r"log_probs and mask must have shape .* got \(2, 3, 4, 1\)"),
        (P, R.T, None, r"rewards \(batch, candidates\), got .* and \(3, 2\)"),
        (P, R, torch.ones(2, 3), r"log_probs and mask must have shape .* got \(2, 3, 4\), \(2, 3\)"),
        (P[:, :0], R[:, :0], None, r"got \(2, 0, 4\).* Pass at least one candidate"),
        (P + 3, R, None, "log_probs must be finite and at most 0 where the mask is True, got 2.0"),
        (P * INF, R, None, "log_probs must be finite .* got -inf"),
        (P, R * NAN, None, "rewards must be finite for every candidate with tokens"),
    ],
)
def test_wrong_arguments(log_probs, rewards, mask, message):
    with pytest.raises(ValueError, match=message):
        make_loss()(log_probs, rewards, mask)
