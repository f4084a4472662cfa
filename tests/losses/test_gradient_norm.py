"""Losses scaled to the gradient norm of another."""

import pytest
import torch

from bertscore_tm.losses import MinimumRiskLoss, match_gradient_norm


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
    # The graph is kept for the backward pass of the sum.
    (cross_entropy + 0.3 * scaled).backward()
    assert layer.weight.grad.isfinite().all()


def test_a_loss_without_gradient_stays_without():
    layer, hidden = torch.nn.Linear(4, 5), torch.randn(2, 2, 3, 4)
    cross_entropy, risk = losses_of(layer, hidden, 0.0)
    scaled = match_gradient_norm(risk, cross_entropy, layer.weight)
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
