"""Losses that raise the reward of whole sequences, such as their true BERTScore, with any tokenizer.

Rewards are numbers without a gradient, so any function that scores texts can supply them, such as
:class:`bertscore_tm.losses.BERTScoreReward`; the gradient goes through the sequences' log-probabilities.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from bertscore_tm.core.reductions import Reduction, reduce_batch
from bertscore_tm.utilities.settings import require_choice

__all__ = ["MinimumRiskLoss", "SelfCriticalLoss"]

Normalize = Literal["length"]

_DEFAULT_ALPHA, _DEFAULT_ALPHA_OF_MEANS = 0.005, 5.0
# A log-probability of 0 may come out slightly positive.
_ROUNDING = 1e-3


class SelfCriticalLoss(nn.Module):
    r"""Self-critical loss: raises the probability of sampled sequences that score above a baseline.

    With sampled sequences w, rewards r and a baseline b:

    .. math::
        \mathrm{loss}(w) = -\bigl(r(w) - b\bigr) \sum_t \log p(w_t), \qquad
        \nabla \mathrm{loss}(w) = -\bigl(r(w) - b\bigr) \nabla \log p(w)

    Averaged over samples, this is the gradient of minus the expected reward, for any b that does not depend on w; a
    good b reduces the variance. Two are in use:

    * the reward of the greedily decoded sequence, self-critical training (Rennie et al., CVPR 2017);
    * without ``baseline``, the mean reward of the item's other samples,
      :math:`b_i = \frac{1}{S-1} \sum_{j \ne i} r(w_j)` (Kool et al., "Buy 4 REINFORCE samples, get a baseline for
      free!", 2019), which needs no greedy decoding.

    The value of the loss does not measure progress; log the rewards. The sum over tokens is not divided by their
    number, so the gradient grows with the length of the text. Add the loss to cross-entropy, with a small weight: a
    reward such as BERTScore alone does not penalize wrong word order, negation or repetition.

    Args:
        reduction: over sequences with tokens: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError: the reduction is unknown.

    Shape:
        - log_probs: (batch, tokens) or (batch, samples, tokens), any floating dtype.
        - rewards: (batch,) or (batch, samples).
        - mask: the shape of log_probs, bool.
        - baseline: (batch,), or the shape of rewards.
        - output: scalar, or the shape of rewards with ``reduction="none"``; float32 at least.

    Example:
        >>> logits = torch.zeros(1, 2, 3, 5, requires_grad=True)  # an item, two samples of three tokens
        >>> ids = torch.tensor([[[4, 1, 2], [4, 3, 0]]])  # what was sampled; here 0 is padding
        >>> log_probs = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        >>> loss = SelfCriticalLoss()
        >>> loss(log_probs, torch.tensor([[0.9, 0.5]]), mask=ids != 0).backward()
        >>> logits.grad[0, :, 1].abs().sum(-1)
        tensor([0.3200, 0.3200])
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        require_choice("reduction", reduction, Reduction)
        self.reduction: Reduction = reduction

    def forward(
        self, log_probs: Tensor, rewards: Tensor, mask: Tensor | None = None, baseline: Tensor | None = None
    ) -> Tensor:
        """Return the loss of sampled sequences.

        Args:
            log_probs: log-probability of every sampled token, from a pass with gradient over what was sampled.
            rewards: reward of every sequence; taken without gradient.
            mask: tokens of the sequences, their end tokens included; other values are ignored, -inf and NaN too.
                Sequences without a token are left out; their loss is 0. Default: all.
            baseline: rewards of the greedily decoded sequences, one per item or per sequence. Default: the mean reward
                of the item's other samples.

        Returns:
            The loss.

        Raises:
            TypeError: an argument is not a tensor, or of the wrong dtype.
            ValueError: shapes do not fit, there is neither a baseline nor a second sample, or (checked on the CPU only,
                as it would synchronize a device) a value is not finite or not a log-probability.
        """
        log_prob, rewards, real = _sum_sequences(log_probs, rewards, mask)
        if baseline is None:
            advantage = _compute_leave_one_out_advantage(rewards, real)
        else:
            advantage = rewards - _expand_baseline(baseline, rewards, real)
        return reduce_batch(-advantage * log_prob, self.reduction, real)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"reduction={self.reduction!r}"


class MinimumRiskLoss(nn.Module):
    r"""Expected risk, 1 minus the reward, over candidate sequences of each item: sampled ones, or those of a beam.

    With the candidates' set S and rewards r:

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

    Shape:
        - log_probs: (batch, candidates, tokens), any floating dtype.
        - rewards: (batch, candidates).
        - mask: (batch, candidates, tokens), bool.
        - output: scalar, or (batch,) with ``reduction="none"``; float32 at least.

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
        self.reduction: Reduction = reduction
        self.normalize: Normalize | None = normalize

    def forward(self, log_probs: Tensor, rewards: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the expected risk of a batch.

        Args:
            log_probs: log-probability of every candidate's tokens, from a pass with gradient.
            rewards: reward of every candidate; taken without gradient.
            mask: tokens of the candidates, their end tokens included; other values are ignored, -inf and NaN too.
                Candidates without a token are left out; the loss of items without candidates is 0. Default: all.

        Returns:
            The loss.

        Raises:
            TypeError: an argument is not a tensor, or of the wrong dtype.
            ValueError: shapes do not fit, or (checked on the CPU only, as it would synchronize a device) a value is not
                finite or not a log-probability.
        """
        if isinstance(log_probs, Tensor) and log_probs.ndim != 3:
            raise ValueError(f"log_probs must have shape (batch, candidates, tokens), got {tuple(log_probs.shape)}")
        log_prob, rewards, real = _sum_sequences(log_probs, rewards, mask)
        if self.normalize is not None:
            num_tokens = log_probs.shape[-1] if mask is None else mask.bool().sum(-1).clamp(min=1)
            log_prob = log_prob / num_tokens
        # The lowest finite number rather than -inf, so that an item without candidates stays defined.
        scores = (self.alpha * log_prob).masked_fill(~real, torch.finfo(log_prob.dtype).min)
        best, lost = _compare_with_best(rewards, real)
        risk = (1 - best)[:, 0] + (scores.softmax(-1) * lost).sum(-1)
        return reduce_batch(risk, self.reduction, real.any(-1))

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"alpha={self.alpha}, reduction={self.reduction!r}, normalize={self.normalize!r}"


def _sum_sequences(log_probs: Tensor, rewards: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probability and reward of each sequence, and which sequences have a token."""
    for name, value in (("log_probs", log_probs), ("rewards", rewards)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got a {type(value).__name__}: pass torch.tensor(...) of it")
    if not log_probs.is_floating_point():
        raise TypeError(f"log_probs must be floating point, got {log_probs.dtype}: token ids are not log-probabilities")
    if log_probs.ndim not in (2, 3):
        raise ValueError(
            f"log_probs must have shape (batch, tokens) or (batch, sequences, tokens), got {tuple(log_probs.shape)}: "
            f"of logits, gather the log-probabilities of the tokens first"
        )
    if rewards.shape != log_probs.shape[:-1]:
        raise ValueError(
            f"rewards must have one number per sequence, shape {tuple(log_probs.shape[:-1])}, got "
            f"{tuple(rewards.shape)}"
        )
    if mask is None:
        mask = torch.ones_like(log_probs, dtype=torch.bool)
    if mask.shape != log_probs.shape:
        raise ValueError(f"mask must have the shape {tuple(log_probs.shape)} of log_probs, got {tuple(mask.shape)}")
    mask = mask.bool()
    real = mask.any(-1)
    dtype = torch.promote_types(torch.float32, log_probs.dtype)
    if _can_check_values(log_probs):
        kept = log_probs.detach()[mask]
        wrong = kept[~((kept <= _ROUNDING) & kept.isfinite())]
        if len(wrong):
            raise ValueError(
                f"log_probs must be finite and at most 0 where the mask holds, got {wrong[0].item()}: take them from "
                f"log_softmax of the logits, and mask padding and impossible tokens"
            )
    rewards = _prepare_rewards(rewards, "rewards", real, dtype)
    return log_probs.masked_fill(~mask, 0.0).to(dtype).sum(-1), rewards, real


def _prepare_rewards(values: Tensor, name: str, real: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rewards without gradient, 0 for sequences that are left out."""
    values = values.detach().to(real.device, dtype)
    if _can_check_values(values) and not values[real].isfinite().all():
        raise ValueError(
            f"{name} must be finite for every sequence with tokens: clear the mask of sequences without a reward"
        )
    return torch.where(real, values, 0.0)


def _can_check_values(values: Tensor) -> bool:
    # On other devices each check would synchronize the device; it would break a compiled graph.
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def _expand_baseline(baseline: Tensor, rewards: Tensor, real: Tensor) -> Tensor:
    if not isinstance(baseline, Tensor):
        raise TypeError(f"baseline must be a tensor, got a {type(baseline).__name__}: pass torch.tensor(...) of it")
    if rewards.ndim == 2 and baseline.shape == rewards.shape[:1]:
        baseline = baseline[:, None].expand_as(rewards)
    if baseline.shape != rewards.shape:
        raise ValueError(
            f"baseline must have one number per item or per sequence, shape {tuple(rewards.shape[:1])} or "
            f"{tuple(rewards.shape)}, got {tuple(baseline.shape)}"
        )
    return _prepare_rewards(baseline, "baseline", real, rewards.dtype)


def _compute_leave_one_out_advantage(rewards: Tensor, real: Tensor) -> Tensor:
    """Return each reward minus the mean of the item's others; 0 where the others have no tokens."""
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards of shape {tuple(rewards.shape)} leave nothing to compare a sample with: pass baseline=, the "
            f"rewards of greedily decoded sequences, or several samples per item, shape (batch, samples, tokens)"
        )
    others = real.sum(-1, keepdim=True) - 1
    lost = _compare_with_best(rewards, real)[1]
    mean = (lost.sum(-1, keepdim=True) - lost) / others.clamp(min=1)
    return torch.where(others > 0, mean - lost, 0.0)


def _compare_with_best(rewards: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return each item's best reward, shape (batch, 1), and what each sequence lacks of it; 0 for those left out.

    Where all rewards are the same, the gradient of what is computed from the differences is 0, not a rounding error,
    which :func:`bertscore_tm.losses.match_gradient_norm` would scale up to the gradient of a loss.
    """
    best = torch.where(real, rewards, -torch.inf).amax(-1, keepdim=True)
    best = torch.where(real.any(-1, keepdim=True), best, 0.0)
    return best, torch.where(real, best - rewards, 0.0)
