"""Expectations over a generator's predictions, from its logits or its hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bertscore_tm.core.onednn import is_eager
from bertscore_tm.losses.soft.expected_embedding import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.soft.relaxation import Relaxation, mask_excluded, softmax_relaxation
from bertscore_tm.losses.soft.soft_tokens import SoftTokens
from bertscore_tm.losses.soft.softmax_expectation import softmax_expectation

__all__ = [
    "OutputVocabulary",
    "compute_statistics",
    "predict_from_hidden",
    "predict_from_logits",
]

# Positions per step where logits are reduced to statistics.
_POSITIONS_PER_STEP = 256


@dataclass(frozen=True)
class OutputVocabulary:
    """The generator's tokens as the encoder sees them, on one device.

    Args:
        table: input embedding of each of the generator's tokens, shape (vocabulary, width).
        weights: weight of each token, shape (vocabulary,); ``None`` where all weigh 1.
        excluded_ids: tokens that get no probability.
        encoder_ids: the encoder's id of each token, shape (vocabulary,), int64; ``None`` where a token has several.

    Attributes:
        columns: the table and the weights, whose expectations one product computes, shape (vocabulary, columns).
    """

    table: Tensor
    weights: Tensor | None
    excluded_ids: Sequence[int]
    encoder_ids: Tensor | None = None
    columns: Tensor = field(init=False)

    def __post_init__(self) -> None:
        columns = self.table
        if self.weights is not None:
            columns = torch.cat([columns, self.weights[:, None].to(columns.dtype)], dim=1)
        object.__setattr__(self, "columns", columns)


def predict_from_logits(
    logits: Tensor,
    content: Tensor,
    vocabulary: OutputVocabulary,
    relaxation: Relaxation,
    temperature: float,
) -> SoftTokens:
    """Return expectations under relaxed logits.

    Args:
        logits: shape (batch, positions, vocabulary).
        content: positions whose expectations are needed, shape (batch, positions), bool.
        vocabulary: the tokens.
        relaxation: returns probabilities of logits.
        temperature: of the relaxation.

    Returns:
        The expectations as soft tokens, arbitrary and without gradient outside the content; their weights have no
        gradient.

    Example:
        >>> vocabulary = OutputVocabulary(torch.tensor([[0.0, 2.0], [4.0, 0.0], [8.0, 8.0]]), None, [2])
        >>> logits, content = torch.tensor([[[0.0, 0.0, 9.0]]]), torch.tensor([[True]])
        >>> predict_from_logits(logits, content, vocabulary, softmax_relaxation, 1.0).embeddings
        tensor([[[2., 1.]]])
    """
    if relaxation is softmax_relaxation and is_eager():
        kept = _needed_positions(content)
        ignored = ~content.flatten() if content.device.type != "cpu" else None
        expected = softmax_expectation(logits, vocabulary.columns, temperature, vocabulary.excluded_ids, kept, ignored)
        return _split_columns(expected, content, vocabulary)
    # A model may compute anything elsewhere, such as NaN in padding, whose gradient would be NaN too.
    p = relaxation(logits.masked_fill(~content[..., None], 0.0), temperature, vocabulary.excluded_ids)
    weights = None if vocabulary.weights is None else p.detach() @ vocabulary.weights.to(p.dtype)
    return SoftTokens(expected_embedding(p, vocabulary.table), content, weights)


def predict_from_hidden(
    hidden: Tensor,
    content: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    vocabulary: OutputVocabulary,
    temperature: float,
    labels: Tensor | None = None,
    ignore_index: int = -100,
) -> tuple[SoftTokens, Tensor | None]:
    """Return expectations under a softmax, without a tensor of all logits.

    Args:
        hidden: the generator's last hidden states, shape (batch, positions, features).
        content: positions whose expectations are needed, shape (batch, positions), bool.
        weight: of its output layer, shape (outputs, features), with at least as many outputs as there are tokens.
        bias: of its output layer, shape (outputs,), or none.
        vocabulary: the tokens.
        temperature: of the softmax.
        labels: token ids, shape (batch, positions), to compute the cross-entropy too, in the same pass.
        ignore_index: label that the cross-entropy ignores.

    Returns:
        The expectations, as from :func:`predict_from_logits`; and the mean cross-entropy, ``None`` without labels.

    Example:
        >>> vocabulary = OutputVocabulary(torch.tensor([[0.0, 2.0], [4.0, 0.0], [8.0, 8.0]]), None, [2])
        >>> hidden, content = torch.zeros(1, 1, 4), torch.tensor([[True]])
        >>> predictions, _ = predict_from_hidden(hidden, content, torch.ones(3, 4), None, vocabulary, 1.0)
        >>> predictions.embeddings
        tensor([[[2., 1.]]])
    """
    needed = content if labels is None else content | (labels != ignore_index)
    kept = _needed_positions(needed)
    if kept is None:
        hidden = hidden.masked_fill(~needed[..., None], 0.0)
    else:
        hidden = hidden.flatten(0, 1).index_select(0, kept)
        labels = None if labels is None else labels.flatten().index_select(0, kept)
    columns, excluded = vocabulary.columns, [*vocabulary.excluded_ids]
    size = len(columns)
    if labels is None:
        weight, bias = weight[:size], None if bias is None else bias[:size]
    elif size < len(weight):
        # Outputs beyond the tokens take part in the cross-entropy, as in that of the logits.
        columns = nn.functional.pad(columns, (0, 0, 0, len(weight) - size))
        excluded += range(size, len(weight))
    options: dict[str, Any] = {"linear_bias": bias, "temperature": temperature, "excluded_ids": excluded}
    cross_entropy: Tensor | None = None
    if labels is None:
        expected = linear_expected_embedding(hidden, weight, columns, **options)
    else:
        expected, cross_entropy = linear_expected_embedding(
            hidden, weight, columns, labels, ignore_index=ignore_index, **options
        )
    return _split_columns(_spread(expected.flatten(0, -2), kept, content), content, vocabulary), cross_entropy


@torch.no_grad()
def compute_statistics(
    rows: Callable[[slice | Tensor], Tensor],
    content: Tensor,
    special_ids: Sequence[int],
    *,
    of_softmax: bool = True,
    likeliest: bool = False,
) -> dict[str, Tensor]:
    """Return statistics of the generator's softmax(z) at each position, computed for some positions at a time.

    Args:
        rows: returns the logits of some of the flattened positions, shape (positions, vocabulary).
        content: positions whose statistics are needed, shape (batch, positions), bool.
        special_ids: tokens that are not content.
        of_softmax: return ``entropy``, in nats, and ``special_mass``, the probability of the special tokens.
        likeliest: return ``likeliest``, the likeliest token that is not special, int64.

    Returns:
        The statistics, shape (batch, positions) each, arbitrary outside the content.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0, -torch.inf]])
        >>> compute_statistics(lambda part: logits[part], torch.tensor([[True]]), [1], likeliest=True)
        {'entropy': tensor([[0.6931]]), 'special_mass': tensor([[0.5000]]), 'likeliest': tensor([[0]])}
    """
    names = [*(("entropy", "special_mass") if of_softmax else ()), *(("likeliest",) if likeliest else ())]
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    kept = _needed_positions(content)
    num_rows = content.numel() if kept is None else len(kept)
    for start in range(0, max(num_rows, 1) if names else 0, _POSITIONS_PER_STEP):
        part = slice(start, start + _POSITIONS_PER_STEP)
        logits = rows(part if kept is None else kept[part])
        if of_softmax:
            p = mask_excluded(logits, ()).softmax(-1)
            parts["entropy"].append(torch.special.entr(p).sum(-1))
            parts["special_mass"].append(p[:, list(special_ids)].sum(-1))
        if likeliest:
            parts["likeliest"].append(mask_excluded(logits, special_ids).argmax(-1))
    return {name: _spread(torch.cat(values), kept, content) for name, values in parts.items()}


def _needed_positions(content: Tensor) -> Tensor | None:
    """Return the indices of the flattened positions with content; ``None`` where all have it or are to be computed."""
    # Elsewhere their number would have to be waited for, and it would break a compiled graph.
    if content.device.type != "cpu" or not is_eager():
        return None
    kept = content.flatten().nonzero().squeeze(1)
    return kept if len(kept) < content.numel() else None


def _spread(values: Tensor, kept: Tensor | None, content: Tensor) -> Tensor:
    """Put the values of the needed positions into their places, shape (batch, positions, ...)."""
    if kept is not None:
        values = values.new_zeros(content.numel(), *values.shape[1:]).index_copy(0, kept, values)
    return values.view(*content.shape, *values.shape[1:])


def _split_columns(expected: Tensor, content: Tensor, vocabulary: OutputVocabulary) -> SoftTokens:
    """Split expected columns into embeddings and weights."""
    if vocabulary.weights is None:
        return SoftTokens(expected, content)
    return SoftTokens(expected[..., :-1], content, expected[..., -1].detach())
