"""A loss that raises rewards of whole sequences, by the gradient of their log-probabilities."""

from typing import Literal

import torch
from torch import Tensor, nn

from bertscore_tm.losses.reduction import Reduction, reduce_batch
from bertscore_tm.utilities.checks import require_choice

Normalize = Literal["length"]

_DEFAULT_ALPHA, _DEFAULT_ALPHA_OF_MEANS = 0.005, 5.0
# A log-probability of 0 may come out slightly positive.
_ROUNDING = 1e-3


class MinimumRiskLoss(nn.Module):
    r"""Expected risk, 1 minus the reward, over candidate sequences of each item: sampled ones, or those of a beam.

    With the candidates' set S and rewards r, numbers of any function, such as
    :class:`bertscore_tm.losses.BERTScoreReward`:

    .. math::
        Q(y) = \frac{p(y)^\alpha}{\sum_{y' \in S} p(y')^\alpha}, \qquad
        \mathrm{loss} = \sum_{y \in S} Q(y)\, \bigl(1 - r(y)\bigr)

    (Shen et al., ACL 2016.) The gradient to a token's log-probability is
    :math:`-\alpha\, Q(y)\, \bigl(r(y) - \sum_{y'} Q(y')\, r(y')\bigr)`: it moves probability among the candidates only,
    and is 0 where there is one candidate or all have the same reward. It grows with alpha, so choose the weight next to
    cross-entropy together with it. S is a set: mask all tokens of repeated candidates.

    Sums of log-probabilities favour short candidates. ``normalize="length"`` takes their mean over the tokens instead,
    as most toolkits do; Q is then as sharp for long texts as for short ones, and alpha some thousand times larger.

    Args:
        alpha: sharpness of Q, above 0. Default: 0.005, the paper's for sums over many tokens, or 5 with
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
            alpha = _DEFAULT_ALPHA if normalize is None else _DEFAULT_ALPHA_OF_MEANS
        elif not 0 < alpha < float("inf"):
            raise ValueError(f"alpha must be above 0 and finite, got {alpha}")
        self.alpha = alpha
        self.reduction = reduction
        self.normalize = normalize

    def forward(self, log_probs: Tensor, rewards: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the expected risk of a batch.

        Args:
            log_probs: log-probability of every candidate's tokens, from a pass with gradient, shape (batch,
                candidates, tokens), any floating dtype.
            rewards: reward of every candidate, shape (batch, candidates); taken without gradient.
            mask: tokens of the candidates, their end tokens included, shape (batch, candidates, tokens), bool; other
                values are ignored, -inf and NaN too. Candidates without a token are left out; the loss of items without
                candidates is 0. Default: all.

        Returns:
            The loss, a scalar, or of shape (batch,) with ``reduction="none"``; float32 at least.

        Raises:
            ValueError: shapes do not fit, or (checked on the CPU only, as it would synchronize a device) a value is not
                finite or not a log-probability.
        """
        mask = torch.ones_like(log_probs, dtype=torch.bool) if mask is None else mask.bool()
        shape = log_probs.shape
        if len(shape) != 3 or not shape[1] or mask.shape != shape or rewards.shape != shape[:-1]:
            raise ValueError(
                f"log_probs and mask must have shape (batch, candidates, tokens), with at least one candidate, and "
                f"rewards (batch, candidates), got {tuple(shape)}, {tuple(mask.shape)} and {tuple(rewards.shape)}"
            )
        real = mask.any(-1)  # (batch, candidates)
        dtype = torch.promote_types(torch.float32, log_probs.dtype)
        rewards = rewards.detach().to(real.device, dtype)
        # On other devices the check would synchronize the device; it would break a compiled graph.
        if log_probs.device.type == "cpu" and not torch.compiler.is_compiling():
            _require_values(log_probs.detach()[mask], rewards[real])
        log_prob = log_probs.masked_fill(~mask, 0.0).to(dtype).sum(-1)  # (batch, candidates)
        if self.normalize is not None:
            log_prob = log_prob / mask.sum(-1).clamp(min=1)
        # The lowest finite number rather than -inf, so that an item without candidates stays defined.
        scores = (self.alpha * log_prob).masked_fill(~real, torch.finfo(log_prob.dtype).min)
        best = torch.where(real, rewards, -torch.inf).amax(-1)  # (batch,)
        # Of differences, so that equal rewards have the gradient 0 rather than a rounding error, which scaling to the
        # gradient of another loss would enlarge.
        lost = torch.where(real, best[:, None] - rewards, 0.0)  # (batch, candidates)
        risk = 1 - best + (scores.softmax(-1) * lost).sum(-1)
        return reduce_batch(risk, self.reduction, real.any(-1))

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"alpha={self.alpha}, reduction={self.reduction!r}, normalize={self.normalize!r}"


def _require_values(log_probs: Tensor, rewards: Tensor) -> None:
    """Raise an error unless log-probabilities are finite and at most 0, and rewards finite."""
    wrong = log_probs[~((log_probs <= _ROUNDING) & log_probs.isfinite())]
    if len(wrong):
        raise ValueError(
            f"log_probs must be finite and at most 0 where the mask holds, got {wrong[0].item()}: take them from "
            f"log_softmax of the logits, and mask padding and impossible tokens"
        )
    if not rewards.isfinite().all():
        raise ValueError(
            "rewards must be finite for every candidate with tokens: clear the mask of candidates without a reward"
        )
