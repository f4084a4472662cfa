"""Errors of SelfCriticalLoss and MinimumRiskLoss."""

import pytest
import torch

from bertscore_tm.losses.sequence_level import MinimumRiskLoss, SelfCriticalLoss, minimum_risk_loss, self_critical_loss
from tests.support.sequence_losses import BOTH, INF, NAN, both_losses

pytestmark = pytest.mark.usefixtures("one_thread")

P, R = torch.full((2, 3, 4), -1.0), torch.zeros(2, 3)


@BOTH
@pytest.mark.parametrize(
    ("log_probs", "rewards", "mask", "error", "message"),
    [
        ([[-1.0]], R, None, TypeError, "log_probs must be a tensor, got a list"),
        (P, [0.1, 0.2], None, TypeError, r"rewards must be a tensor, got a list: pass torch.tensor"),
        (P.long(), R, None, TypeError, "log_probs must be floating point, got torch.int64"),
        (P[..., None], R, None, ValueError, r"log_probs must have shape .* got \(2, 3, 4, 1\)"),
        (P[0, 0], R, None, ValueError, r"log_probs must have shape .* got \(4,\)"),
        (P, R.T, None, ValueError, r"rewards must have one number per sequence, shape \(2, 3\), got \(3, 2\)"),
        (P, R[0], None, ValueError, r"rewards must have .* got \(3,\)"),
        (P, R, torch.ones(2, 3), ValueError, r"mask must have the shape \(2, 3, 4\) of log_probs, got \(2, 3\)"),
        (P + 3, R, None, ValueError, "log_probs must be finite and at most 0 where the mask holds, got 2.0"),
        (P * INF, R, None, ValueError, "log_probs must be finite .* got -inf"),
        (P * NAN, R, None, ValueError, "log_probs must be finite .* got nan"),
        (P, R * NAN, None, ValueError, "rewards must be finite for every sequence with tokens"),
        (P, R + INF, None, ValueError, "rewards must be finite"),
    ],
)
def test_wrong_arguments(kind, log_probs, rewards, mask, error, message):
    with pytest.raises(error, match=message):
        both_losses()[kind](log_probs, rewards, mask)


@pytest.mark.parametrize(
    ("baseline", "error", "message"),
    [
        (0.5, TypeError, "baseline must be a tensor, got a float"),
        (torch.zeros(3), ValueError, r"baseline must have .* shape \(2,\) or \(2, 3\), got \(3,\)"),
        (torch.zeros(2, 1), ValueError, r"baseline must have .* got \(2, 1\)"),
        (torch.tensor([0.1, NAN]), ValueError, "baseline must be finite"),
    ],
)
def test_wrong_baselines(baseline, error, message):
    with pytest.raises(error, match=message):
        self_critical_loss(P, R, baseline=baseline)


@pytest.mark.parametrize(("log_probs", "rewards"), [(P[:, :1], R[:, :1]), (P[:, 0], R[:, 0])])
def test_a_single_sample_needs_a_baseline(log_probs, rewards):
    with pytest.raises(ValueError, match="leave nothing to compare a sample with: pass baseline="):
        self_critical_loss(log_probs, rewards)


@pytest.mark.parametrize("alpha", [0, -1.0, NAN, INF])
def test_alpha_must_be_positive(alpha):
    for call in (lambda: MinimumRiskLoss(alpha), lambda: minimum_risk_loss(P, R, alpha=alpha)):
        with pytest.raises(ValueError, match="alpha must be above 0"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: SelfCriticalLoss(reduction="max"),
        lambda: MinimumRiskLoss(reduction="max"),
        lambda: self_critical_loss(P, R, reduction="max"),
        lambda: minimum_risk_loss(P, R, reduction="max"),
    ],
)
def test_unknown_reductions(call):
    with pytest.raises(ValueError, match="reduction='max' is not one of 'mean', 'sum', 'none'"):
        call()
