"""Losses scaled to the gradient norm of another."""

import pytest
import torch

from bertscore_tm.losses import MinimumRiskLoss, SelfCriticalLoss, match_gradient_norm


def losses_of(layer, hidden, scale):
    """Cross-entropy and the expected risk of the same predictions."""
    log_probs = layer(hidden).log_softmax(-1)
    ids = torch.tensor([[[1, 2, 3], [4, 0, 2]], [[3, 3, 1], [2, 4, 4]]])
    cross_entropy = -log_probs[:, 0].gather(-1, ids[:, 0, :, None]).mean()
    rewards = torch.tensor([[0.9, 0.1], [0.2, 0.7]]) * scale
    return cross_entropy, MinimumRiskLoss()(log_probs.gather(-1, ids[..., None])[..., 0], rewards)


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("several", [False, True])
def test_the_gradient_has_the_norm_and_keeps_its_direction(scale, several):
    torch.manual_seed(0)
    layer, hidden = torch.nn.Linear(4, 5), torch.randn(2, 2, 3, 4)
    cross_entropy, risk = losses_of(layer, hidden, scale)
    tensors = list(layer.parameters()) if several else layer.weight
    scaled = match_gradient_norm(risk, cross_entropy, tensors)

    def gradient(loss):
        parts = torch.autograd.grad(loss, tensors, retain_graph=True)
        return torch.cat([part.flatten() for part in parts])

    ours, before, wanted = map(gradient, (scaled, risk, cross_entropy))
    assert wanted.norm() > 10 * before.norm() / scale
    torch.testing.assert_close(ours.norm(), wanted.norm())
    torch.testing.assert_close(torch.cosine_similarity(ours, before, dim=0), torch.tensor(1.0))
    assert match_gradient_norm(risk.bfloat16(), cross_entropy, tensors).dtype == torch.bfloat16
    # The graph is kept for the backward pass of the sum.
    (cross_entropy + 0.3 * scaled).backward()
    assert layer.weight.grad.isfinite().all()


def test_norms_of_half_precision_are_computed_in_float32():
    weight = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    scaled = match_gradient_norm(weight.float().sum(), weight.float()[0], weight)
    torch.testing.assert_close(scaled, torch.tensor(3.0).sqrt())


def leave_one_out(log_probs, rewards):
    return SelfCriticalLoss()(log_probs, rewards)


@pytest.mark.parametrize("loss", [MinimumRiskLoss(alpha=1.0), leave_one_out])
@pytest.mark.parametrize("reward", [0.1, 123.4])
def test_equal_rewards_give_no_gradient_rather_than_a_scaled_rounding_error(loss, reward):
    for seed in range(10):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(4, 5)
        log_probs = layer(torch.randn(2, 7, 3, 4)).log_softmax(-1)[..., 0]
        cross_entropy = -log_probs[:, 0].mean()
        scaled = match_gradient_norm(loss(log_probs, torch.full((2, 7), reward)), cross_entropy, layer.weight)
        assert scaled.item() == 0
        assert torch.autograd.grad(scaled, layer.weight)[0].abs().max() == 0


def test_errors_name_the_loss():
    weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"loss must be a scalar, got shape \(2,\)"):
        match_gradient_norm(weight * 2, weight.sum(), weight)
    with pytest.raises(ValueError, match="reference does not depend on the tensors"):
        match_gradient_norm(weight.sum(), other.sum(), weight)
    with pytest.raises(ValueError, match="reference does not depend on the tensors"):
        match_gradient_norm(weight.sum(), torch.tensor(1.0), weight)
