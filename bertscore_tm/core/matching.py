r"""Matchings: how well each token of a text is matched by the tokens of another, and greedy matching of many pairs.

With cosine similarities s of a token i and the n tokens j of the other text, and a temperature v:

* ``"max"``: :math:`m_i = \max_j s_{ij}` (Zhang et al. 2020, equation 1), the metric's greedy matching;
* ``"softmax"``: :math:`m_i = \sum_j \mathrm{softmax}_j(s_{ij}/v)\, s_{ij}`, between max - v log n and max.

A further matching is a callable with the signature of :data:`Matching`. Everything runs in float32 or float64, with
autocast off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from bertscore_tm.core.memory import numbers_per_step, send
from bertscore_tm.core.token_vectors import (
    Bools,
    Ints,
    TokenVectors,
    cosine_similarities,
    places_of,
    token_batches,
)


@dataclass(frozen=True)
class TokenMass:
    """Which tokens of a batch of texts can be matched, and how much each of them counts.

    Args:
        mask: tokens that can be matched, special tokens included, shape (batch, tokens), bool.
        weights: weight of each token in the mean, 0 for padding, shape (batch, tokens).
    """

    mask: Tensor
    weights: Tensor


# From similarities of shape (batch, candidate tokens, reference tokens), both sides' tokens and a temperature to the
# matched similarities, weighted and summed over the candidate's and over the reference's tokens, shape (batch,) each.
Matching = Callable[[Tensor, TokenMass, TokenMass, float], tuple[Tensor, Tensor]]


def match_greedily(similarities: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    r"""Return each query token's best similarity: :math:`m_i = \max_j s_{ij}`.

    Args:
        similarities: shape (..., queries, keys).
        mask: keys that can be matched, shape (..., keys), bool.
        temperature: not used.

    Returns:
        Shape (..., queries); 0 in rows without a key.

    Example:
        >>> match_greedily(torch.tensor([[0.2, 0.9, 5.0]]), torch.tensor([True, True, False]))
        tensor([0.9000])
    """
    excluded = ~mask.unsqueeze(-2)
    return similarities.masked_fill(excluded, -torch.inf).amax(-1).masked_fill(excluded.all(-1), 0.0)


def match_by_softmax(similarities: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    r"""Return each query token's mean similarity under a softmax: :math:`\sum_j \mathrm{softmax}_j(s_{ij}/v)\, s_{ij}`.

    Args:
        similarities: shape (..., queries, keys).
        mask: keys that can be matched, shape (..., keys), bool.
        temperature: v, above 0.

    Returns:
        Shape (..., queries); 0 in rows without a key.

    Raises:
        ValueError: the temperature is not positive.

    Example:
        >>> match_by_softmax(torch.tensor([[0.2, 0.9, 5.0]]), torch.tensor([True, True, False]))
        tensor([0.8994])
    """
    if not temperature > 0:
        raise ValueError(f"the matching temperature must be above 0, got {temperature}")
    excluded = ~mask.unsqueeze(-2)
    similarities = similarities.masked_fill(excluded, 0.0)
    # Not -inf, so that a row without a key has a softmax, over zeros.
    scaled = (similarities / temperature).masked_fill(excluded, torch.finfo(similarities.dtype).min)
    return (scaled.softmax(-1) * similarities).sum(-1)


@dataclass(frozen=True)
class TokenwiseMatching:
    """Matching that matches each token independently of the other tokens of its text.

    Args:
        match_tokens: function such as :func:`match_greedily`, ``(similarities, mask, temperature) -> matched
            similarities``, applied to the candidate's and to the reference's tokens.

    Example:
        >>> mass = TokenMass(torch.tensor([[True, True]]), torch.tensor([[1.0, 2.0]]))
        >>> TokenwiseMatching(match_greedily)(torch.tensor([[[0.9, 0.1], [0.3, 0.5]]]), mass, mass, 0.1)
        (tensor([1.9000]), tensor([1.9000]))
    """

    match_tokens: Callable[[Tensor, Tensor, float], Tensor]

    def __call__(
        self, similarities: Tensor, candidate: TokenMass, reference: TokenMass, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of both sides' matched similarities, as described for :data:`Matching`."""
        length = max(similarities.shape[1:])
        if 2 * min(similarities.shape[1:]) < length:
            # Texts of very unequal length, which padded to one would take many times the memory.
            matched = self.match_tokens(similarities, reference.mask, temperature)
            other_matched = self.match_tokens(similarities.mT, candidate.mask, temperature)
            return (matched * candidate.weights).sum(1), (other_matched * reference.weights).sum(1)
        # Both sides at once, as an accelerator takes longer to launch so small steps than to compute them.
        masks, weights = [candidate.mask, reference.mask], [candidate.weights, reference.weights]
        missing = [length - mask.shape[1] for mask in masks]
        if any(missing):
            pad = nn.functional.pad
            similarities = pad(similarities, (0, missing[1], 0, missing[0]))
            masks, weights = ([pad(x, (0, m)) for x, m in zip(xs, missing, strict=True)] for xs in (masks, weights))
        both = torch.stack([similarities, similarities.mT])  # (2, batch, length, length)
        matched = self.match_tokens(both, torch.stack(masks[::-1]), temperature)  # (2, batch, length)
        precision, recall = (matched * torch.stack(weights)).sum(-1)
        return precision, recall


TOKENWISE_MATCHINGS: dict[str, Matching] = {
    "max": TokenwiseMatching(match_greedily),
    "softmax": TokenwiseMatching(match_by_softmax),
}


@dataclass(frozen=True)
class MatchedTokens:
    """Tokens of the candidates or of the references of pairs, packed in the order of the pairs.

    Args:
        ids: token ids, shape (tokens,).
        best: similarity of each token to the most similar one of the other text, shape (tokens, layers).
        lengths: tokens per text, shape (pairs,).
    """

    ids: Tensor
    best: Tensor
    lengths: Tensor

    @classmethod
    def concatenate(cls, parts: Sequence[MatchedTokens]) -> MatchedTokens:
        """Return the tokens of all parts."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True)
class MatchedPairs:
    """Matched tokens of pairs of texts; weights and means are applied when document frequencies are known."""

    candidate: MatchedTokens
    reference: MatchedTokens


def match_pairs(vectors: TokenVectors, candidates: Ints, references: Ints) -> MatchedPairs:
    """Match pairs of texts greedily.

    Pairs in which either text has no content token get similarity 0 everywhere, hence score 0.

    Args:
        vectors: token vectors of all texts.
        candidates: number of each pair's candidate text, shape (pairs,).
        references: number of each pair's reference text, shape (pairs,).

    Returns:
        Ids and best similarities of all tokens, on the vectors' device.

    Example:
        >>> vectors = TokenVectors(
        ...     ids=np.array([5, 6, 7]),
        ...     lengths=np.array([2, 1]),
        ...     has_content=np.array([True, True]),
        ...     truncated=np.array([False, False]),
        ...     vectors=torch.tensor([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]]),
        ... )
        >>> matched = match_pairs(vectors, np.array([0]), np.array([1]))
        >>> matched.candidate.best.T, matched.reference.best.T
        (tensor([[0.0000, 0.8000]]), tensor([[0.8000]]))
    """
    num_texts = len(vectors.lengths)
    codes = np.minimum(candidates, references) * num_texts + np.maximum(candidates, references)  # (pairs,)
    if len(set(codes.tolist())) == len(codes):
        return _match_distinct(vectors, candidates, references)
    codes, numbers = np.unique(codes, return_inverse=True)  # (distinct,), (pairs,)
    # Equal pairs, and those whose texts are exchanged, are compared once.
    texts = np.concatenate([codes // num_texts, codes % num_texts])  # of both sides
    matched = _match_distinct(vectors, *np.split(texts, 2))
    sides = MatchedTokens.concatenate([matched.candidate, matched.reference])
    device = sides.ids.device
    lengths, is_exchanged = vectors.lengths[texts], candidates > references
    starts = np.cumsum(lengths) - lengths
    chosen = []
    for is_second in (is_exchanged, ~is_exchanged):
        places = numbers + is_second * len(codes)  # (pairs,)
        tokens = send(places_of(starts[places], lengths[places]), device)
        chosen.append(MatchedTokens(sides.ids[tokens], sides.best[tokens], send(lengths[places], device)))
    return MatchedPairs(*chosen)


def _match_distinct(vectors: TokenVectors, candidates: Ints, references: Ints) -> MatchedPairs:
    device = vectors.vectors.device
    limit = numbers_per_step(device)
    num_layers, _, width = vectors.vectors.shape
    lengths, other_lengths = vectors.lengths[candidates], vectors.lengths[references]  # (pairs,)
    starts, other_starts = np.cumsum(lengths) - lengths, np.cumsum(other_lengths) - other_lengths
    best = vectors.vectors.new_zeros(int(lengths.sum()), num_layers)
    other_best = vectors.vectors.new_zeros(int(other_lengths.sum()), num_layers)
    scored = np.flatnonzero(vectors.has_content[candidates] & vectors.has_content[references])
    longer = np.maximum(lengths, other_lengths)[scored]
    costs = (longer * (longer + 2 * width) * num_layers).tolist()
    # Used again and again, where the allocator would be left with holes in many places.
    memory = vectors.vectors.new_empty(2, min(limit, sum(costs)) // 2)
    for batch in token_batches(costs, limit):
        pairs = scored[batch]
        places, mask = vectors.locate(candidates[pairs])  # (pairs, candidate tokens)
        other_places, other_mask = vectors.locate(references[pairs])  # (pairs, reference tokens)
        states, other_states = (
            vectors.gather(np.where(real, index, index[:, :1]), None, buffer).flatten(0, 1).unsqueeze(1)
            for index, real, buffer in ((places, mask, memory[0]), (other_places, other_mask, memory[1]))
        )  # (layers * pairs, 1, tokens, width) each
        found = match_blocks(states, other_states, limit)
        matched, other_matched = (values.view(num_layers, len(pairs), -1) for values in found)
        _store(best, starts[pairs], mask, matched)
        _store(other_best, other_starts[pairs], other_mask, other_matched)
    sides = []
    for texts, of_texts, similarities in ((candidates, lengths, best), (references, other_lengths, other_best)):
        ids = vectors.ids[places_of(vectors.starts[texts], of_texts)]
        sides.append(MatchedTokens(send(ids, device), similarities, send(of_texts, device)))
    return MatchedPairs(*sides)


def _store(best: Tensor, starts: Ints, mask: Bools, matched: Tensor) -> None:
    """Store similarities of a batch, shape (layers, batch, longest), among those of all pairs, (tokens, layers).

    ``starts`` are the places of each text's first token there, and the mask that of its real tokens.
    """
    places = (starts[:, None] + np.arange(mask.shape[1]))[mask]  # (real tokens,)
    real = send(np.flatnonzero(mask), best.device)  # (real tokens,)
    chosen = matched.flatten(1).index_select(1, real)  # (layers, real tokens)
    best.index_copy_(0, send(places, best.device), chosen.T)


def match_blocks(states: Tensor, other_states: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Match all pairs of texts of each group greedily, in steps, so that a matrix of two long texts never exists.

    Args:
        states: unit vectors, shape (groups, texts, tokens, width). Padding repeats a token of its text, which changes
            no maximum.
        other_states: those of the other side, shape (groups, other texts, other tokens, width).
        limit: number of similarities per step.

    Returns:
        The best similarity of each token in each text of the other side, shape (groups, texts, tokens, other texts),
        and the other way round, shape (groups, texts, other texts, other tokens).
    """
    (groups, texts, length, width), (_, other_texts, other_length, _) = states.shape, other_states.shape
    rows = max(limit // (groups * texts * other_texts * other_length), 1)
    # Written in place: small results kept between large blocks would keep the allocator from using their memory again.
    best = states.new_empty(groups, texts, length, other_texts)
    other_best = states.new_full((groups, texts, other_texts, other_length), -torch.inf)
    for start in range(0, length, rows):
        part = states[:, :, start : start + rows].reshape(groups, -1, width)  # (groups, texts * rows, width)
        block = cosine_similarities(part, other_states.flatten(1, 2))
        block = block.view(groups, texts, -1, other_texts, other_length)
        best[:, :, start : start + rows] = block.amax(-1)
        torch.maximum(other_best, block.amax(2), out=other_best)
    return best, other_best
