"""Expectations over a generator's predictions, from its logits or its hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bertscore_tm.core.onednn import is_eager
from bertscore_tm.losses.expected_embedding import expected_embedding, linear_expected_embedding
from bertscore_tm.losses.relaxation import Relaxation, mask_excluded, softmax_relaxation
from bertscore_tm.losses.softmax_expectation import softmax_expectation

__all__ = [
    "OutputVocabulary",
    "SoftPredictions",
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
        weights: weight of each token, 0 for the end tokens, shape (vocabulary,); ``None`` where all weigh 1.
        excluded_ids: tokens that get no probability.
        end_ids: tokens that end a text, with ``length="eos"``; otherwise empty.
        encoder_ids: the encoder's id of each token, shape (vocabulary,), int64; ``None`` where a token has several.

    Attributes:
        columns: the table, the weights and the end tokens, whose expectations one product computes, shape (vocabulary,
            columns).
    """

    table: Tensor
    weights: Tensor | None
    excluded_ids: Sequence[int]
    end_ids: Sequence[int] = ()
    encoder_ids: Tensor | None = None
    columns: Tensor = field(init=False)

    def __post_init__(self) -> None:
        columns = [self.table]
        if self.weights is not None:
            columns.append(self.weights[:, None].to(self.table.dtype))
        if self.end_ids:
            is_end = torch.zeros_like(self.table[:, :1])
            is_end[list(self.end_ids)] = 1
            columns = [*(column * (1 - is_end) for column in columns), is_end]
        object.__setattr__(self, "columns", columns[0] if len(columns) == 1 else torch.cat(columns, dim=1))


@dataclass(frozen=True)
class SoftPredictions:
    """Expectations over the generator's tokens at each position, arbitrary and without gradient outside the content.

    Args:
        embeddings: expected input embedding, without the share of the end tokens, shape (batch, positions, width).
        weights: expected weight of the content, without gradient, shape (batch, positions); ``None`` where all weigh 1.
        ends: probability of the end tokens, shape (batch, positions); ``None`` without ``end_ids``.
    """

    embeddings: Tensor
    weights: Tensor | None
    ends: Tensor | None


def predict_from_logits(
    logits: Tensor,
    content: Tensor,
    vocabulary: OutputVocabulary,
    relaxation: Relaxation,
    temperature: float,
    top_k: int | None = None,
) -> SoftPredictions:
    """Return expectations under relaxed logits.

    Args:
        logits: shape (batch, positions, vocabulary).
        content: positions whose expectations are needed, shape (batch, positions), bool.
        vocabulary: the tokens.
        relaxation: returns probabilities of logits.
        temperature: of the relaxation.
        top_k: number of likeliest tokens per position that get a probability. Default: all.

    Returns:
        The expectations.

    Example:
        >>> vocabulary = OutputVocabulary(torch.tensor([[0.0, 2.0], [4.0, 0.0], [8.0, 8.0]]), None, [2])
        >>> logits, content = torch.tensor([[[0.0, 0.0, 9.0]]]), torch.tensor([[True]])
        >>> predict_from_logits(logits, content, vocabulary, softmax_relaxation, 1.0).embeddings
        tensor([[[2., 1.]]])
    """
    table, end_ids, ends = vocabulary.table, list(vocabulary.end_ids), None
    if top_k is None and relaxation is softmax_relaxation and is_eager():
        kept = _needed_positions(content)
        ignored = ~content.flatten() if content.device.type != "cpu" else None
        expected = softmax_expectation(logits, vocabulary.columns, temperature, vocabulary.excluded_ids, kept, ignored)
        return _split_columns(expected, vocabulary)
    # A model may compute anything elsewhere, such as NaN in padding, whose gradient would be NaN too.
    logits = logits.masked_fill(~content[..., None], 0.0)
    if top_k is None:
        p = relaxation(logits, temperature, vocabulary.excluded_ids)
        embeddings = expected_embedding(p, table)
        weights = None if vocabulary.weights is None else p.detach() @ vocabulary.weights.to(p.dtype)
        if end_ids:
            ends = p[..., end_ids].sum(-1)
            embeddings = embeddings - p[..., end_ids] @ table[end_ids].to(p.dtype)
        return SoftPredictions(embeddings, _condition_on_content(weights, ends), ends)
    z = mask_excluded(logits, vocabulary.excluded_ids)
    values, ids = z.topk(min(top_k, z.shape[-1]), dim=-1)
    p = relaxation(values, temperature, ())
    if end_ids:
        is_end = torch.isin(ids, torch.tensor(end_ids, device=ids.device))
        ends = (p * is_end).sum(-1)
        p = p.masked_fill(is_end, 0.0)
    rows = nn.functional.embedding_bag(
        ids.flatten(0, -2), table.to(p.dtype), mode="sum", per_sample_weights=p.flatten(0, -2)
    )
    weights = None if vocabulary.weights is None else (p.detach() * vocabulary.weights.to(p.dtype)[ids]).sum(-1)
    return SoftPredictions(rows.view(*ids.shape[:-1], table.shape[1]), _condition_on_content(weights, ends), ends)


def predict_from_hidden(
    hidden: Tensor,
    content: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    vocabulary: OutputVocabulary,
    temperature: float,
    labels: Tensor | None = None,
    ignore_index: int = -100,
) -> tuple[SoftPredictions, Tensor | None]:
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
        The expectations, and the mean cross-entropy, ``None`` without labels.

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
    return _split_columns(_spread(expected.flatten(0, -2), kept, content), vocabulary), cross_entropy


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


def _split_columns(expected: Tensor, vocabulary: OutputVocabulary) -> SoftPredictions:
    """Split expected columns into predictions."""
    width = vocabulary.table.shape[1]
    weights = expected[..., width].detach() if vocabulary.weights is not None else None
    ends = expected[..., -1] if vocabulary.end_ids else None
    return SoftPredictions(expected[..., :width], _condition_on_content(weights, ends), ends)


def _condition_on_content(weights: Tensor | None, ends: Tensor | None) -> Tensor | None:
    """Return expected weights given that the text has not ended."""
    if weights is None or ends is None:
        return weights
    return weights / (1 - ends.detach()).clamp(min=torch.finfo(ends.dtype).eps)
