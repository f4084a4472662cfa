"""Random sequences, and what losses of sequences share."""

import math

import pytest
import torch

from bertscore_tm.losses.sequence.sequence_level import MinimumRiskLoss, SelfCriticalLoss

INF, NAN = math.inf, math.nan


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequences(*shape, seed=0):
    """Log-probabilities of tokens, rewards, and a mask of sequences of different lengths, one token at least."""
    log_probs = noise(*shape, 7, seed=seed).log_softmax(-1)[..., 0]
    lengths = torch.randint(1, shape[-1] + 1, shape[:-1], generator=torch.Generator().manual_seed(seed))
    return log_probs, noise(*shape[:-1], seed=seed + 1).sigmoid(), torch.arange(shape[-1]) < lengths[..., None]


def kept(log_probs, mask):
    return [p for p, real in zip(log_probs.tolist(), mask.tolist(), strict=True) if real]


def slow_shares(log_probs, mask, alpha):
    """Q of one item's candidates, from probabilities as the paper writes it."""
    powers = [math.prod(math.exp(p) for p in kept(*one)) ** alpha for one in zip(log_probs, mask, strict=True)]
    return [power / sum(powers) for power in powers]


def self_critical_loss(log_probs, rewards, mask=None, baseline=None, reduction="mean"):
    return SelfCriticalLoss(reduction=reduction)(log_probs, rewards, mask, baseline)


def minimum_risk_loss(log_probs, rewards, mask=None, alpha=None, reduction="mean", normalize=None):
    return MinimumRiskLoss(alpha, reduction=reduction, normalize=normalize)(log_probs, rewards, mask)


def both_losses(reduction="mean"):
    """Each loss with the arguments of the other: log_probs (batch, sequences, tokens), rewards, mask."""
    return [SelfCriticalLoss(reduction=reduction), MinimumRiskLoss(0.3, reduction=reduction)]


BOTH = pytest.mark.parametrize("kind", [0, 1], ids=["self-critical", "minimum-risk"])
