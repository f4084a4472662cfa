"""Minimum-risk loss: raise the expected reward of whole sequences by the gradient of their log-probabilities."""

from typing import Literal

import torch
from torch import Tensor, nn

from bertscore_tm.losses.reduction import Reduction, reduce_batch
from bertscore_tm.utilities.checks import require_choice

Normalize = Literal["length"]

# Default of alpha for log-probabilities summed over the tokens, as in the paper.
_DEFAULT_ALPHA = 0.005
# Default of alpha for log-probabilities averaged over the tokens.
_DEFAULT_ALPHA_OF_MEANS = 5.0
# Largest log-probability that counts as rounding of 0.
_ROUNDING = 1e-3


class MinimumRiskLoss(nn.Module):
    r"""Expected risk (1 minus the reward) over the candidates of each item, which are sampled or come from a beam.

    With the set S of candidates and rewards r from any function, such as
    :class:`bertscore_tm.losses.BERTScoreReward`:

    .. math::
        Q(y) = \frac{p(y)^\alpha}{\sum_{y' \in S} p(y')^\alpha}, \qquad
        \mathrm{loss} = \sum_{y \in S} Q(y)\, \bigl(1 - r(y)\bigr)

    (Shen et al., ACL 2016.) The gradient to a token's log-probability is
    :math:`-\alpha\, Q(y)\, \bigl(r(y) - \sum_{y'} Q(y')\, r(y')\bigr)`: it moves probability among the candidates only.
    It is 0 if there is one candidate or all candidates have the same reward. The gradient grows with alpha, so choose
    alpha together with the loss's weight next to cross-entropy. S is a set: mask all tokens of repeated candidates.

    Sums of log-probabilities favour short candidates. ``normalize="length"`` takes the mean over the tokens instead,
    like most toolkits. Q is then as sharp for long texts as for short ones, and alpha is about a thousand times larger.

    Args:
        alpha: sharpness of Q, above 0. Default: 0.005, the paper's value for sums over the tokens, or 5 with
            ``normalize="length"``.
        reduction: over items with candidates: ``"mean"``, ``"sum"`` or ``"none"``.
        normalize: ``"length"`` divides each candidate's log-probability by its number of tokens. Default: the sum.

    Raises:
        ValueError: ``alpha`` is not positive, or a setting is unknown.

    Example:
        >>> log_probs = torch.tensor([[[-1.0, -1.0], [-1.0, -3.0]]], requires_grad=True)
        >>> loss = MinimumRiskLoss(alpha=1.0)
        >>> value = loss(log_probs, torch.tensor([[1.0, 0.0]]))
        >>> value.backward()
        >>> round(value.item(), 4), log_probs.grad[0, :, 0]
        (0.1192, tensor([-0.1050,  0.1050]))
    """

    def __init__(
        self, alpha: float | None = None, *, reduction: Reduction = "mean", normalize: Normalize | None = None
    ) -> None:
        super().__init__()
        require_choice("reduction", reduction, Reduction)
        if normalize is not None:
            require_choice("normalize", normalize, Normalize)
        if alpha is None:
            alpha = _DEFAULT_ALPHA
            if normalize is not None:
                alpha = _DEFAULT_ALPHA_OF_MEANS
        if not 0 < alpha < float("inf"):
            raise ValueError(f"alpha must be above 0 and finite, got {alpha}")
        self.alpha = alpha
        self.reduction = reduction
        self.normalize = normalize

    def forward(self, log_probs: Tensor, rewards: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the expected risk of a batch.

        Args:
            log_probs: log-probability of every candidate's tokens, from a pass with gradient, shape (batch,
                candidates, tokens), any floating dtype.
            rewards: reward of every candidate, shape (batch, candidates). No gradient flows to them.
            mask: tokens of the candidates, their end tokens included, shape (batch, candidates, tokens), bool. Values
                at other positions are ignored, even -inf and NaN. Candidates without a token are left out, and an item
                without candidates has the loss 0. Default: all.

        Returns:
            The loss, a scalar, or of shape (batch,) with ``reduction="none"``; float32 or wider.

        Raises:
            ValueError: shapes do not fit, or a value is not finite or not a log-probability. Values are checked on the
                CPU only, because the check would synchronize an accelerator.
        """
        if mask is None:
            mask = torch.ones_like(log_probs, dtype=torch.bool)
        mask = mask.bool()
        shape = log_probs.shape
        has_candidates = len(shape) == 3 and shape[1] > 0
        if not has_candidates or mask.shape != shape or rewards.shape != shape[:-1]:
            raise ValueError(
                f"log_probs and mask must have shape (batch, candidates, tokens) and rewards (batch, candidates), got "
                f"{tuple(shape)}, {tuple(mask.shape)} and {tuple(rewards.shape)}. Pass at least one candidate."
            )
        has_tokens = mask.any(-1)  # (batch, candidates)
        dtype = torch.promote_types(torch.float32, log_probs.dtype)
        # The rewards are constants, even if a function of the user returns them with a gradient.
        rewards = rewards.detach().to(has_tokens.device, dtype)
        # Check values on the CPU only, because the check would synchronize an accelerator and break a compiled graph.
        if log_probs.device.type == "cpu" and not torch.compiler.is_compiling():
            _require_values(log_probs.detach()[mask], rewards[has_tokens])
        log_prob = log_probs.masked_fill(~mask, 0.0).to(dtype).sum(-1)  # (batch, candidates)
        if self.normalize is not None:
            num_tokens = mask.sum(-1).clamp(min=1)  # (batch, candidates)
            log_prob = log_prob / num_tokens
        # Use the lowest finite number, because a softmax over -inf alone would be NaN for an item without candidates.
        scores = (self.alpha * log_prob).masked_fill(~has_tokens, torch.finfo(log_prob.dtype).min)
        q = scores.softmax(-1)  # (batch, candidates)
        # Average differences to the best reward instead of rewards, because equal rewards then have the gradient 0 and
        # not a rounding error. Scaling the gradient to that of another loss would enlarge such an error.
        best = torch.where(has_tokens, rewards, -torch.inf).amax(-1)  # (batch,)
        lost = torch.where(has_tokens, best[:, None] - rewards, 0.0)  # (batch, candidates)
        risk = 1 - best + (q * lost).sum(-1)  # (batch,)
        return reduce_batch(risk, self.reduction, included=has_tokens.any(-1))

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"alpha={self.alpha}, reduction={self.reduction!r}, normalize={self.normalize!r}"


def _require_values(log_probs: Tensor, rewards: Tensor) -> None:
    """Raise an error unless log-probabilities are finite and at most 0, and rewards finite."""
    is_valid = (log_probs <= _ROUNDING) & log_probs.isfinite()
    if not is_valid.all():
        wrong = log_probs[~is_valid][0].item()
        raise ValueError(
            f"log_probs must be finite and at most 0 where the mask is True, got {wrong}. Take them from log_softmax "
            f"of the logits, and mask padding."
        )
    if not rewards.isfinite().all():
        raise ValueError(
            "rewards must be finite for every candidate with tokens. Set the mask of candidates without a reward to "
            "False."
        )
