r"""Matchings: how well each token of a text is matched by the tokens of another, and greedy matching of many pairs.

With cosine similarities s of a token i and the n tokens j of the other text, and a temperature v:

* ``"max"``: :math:`m_i = \max_j s_{ij}` (Zhang et al. 2020, equation 1), the metric's greedy matching;
* ``"softmax"``: :math:`m_i = \sum_j \mathrm{softmax}_j(s_{ij}/v)\, s_{ij}`, between max - v log n and max.

A further matching is a callable with the signature of :data:`Matching`. Everything runs in float32 or float64, with
autocast off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.device.memory import numbers_per_step, send
from bertscore_tm.matching.vectors import (
    Ints,
    TokenizedTexts,
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
    excluded = ~mask.unsqueeze(-2)  # (..., 1, keys)
    best = similarities.masked_fill(excluded, -torch.inf).amax(-1)  # (..., queries)
    return best.masked_fill(excluded.all(-1), 0.0)


def match_by_softmax(similarities: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    r"""Return each query token's mean similarity under a softmax: :math:`\sum_j \mathrm{softmax}_j(s_{ij}/v)\, s_{ij}`.

    Shapes are those of :func:`match_greedily`; the temperature v must be above 0, or a ValueError is raised.

    Example:
        >>> match_by_softmax(torch.tensor([[0.2, 0.9, 5.0]]), torch.tensor([True, True, False]))
        tensor([0.8994])
    """
    if not temperature > 0:
        raise ValueError(f"the matching temperature must be above 0, got {temperature}")
    excluded = ~mask.unsqueeze(-2)  # (..., 1, keys)
    # The similarities of padding may be NaN or infinite, which a weight of 0 would not remove from the sum.
    similarities = similarities.masked_fill(excluded, 0.0)
    # The smallest finite number and not -inf, because the softmax of a row without a key would be NaN.
    smallest = torch.finfo(similarities.dtype).min
    scaled = (similarities / temperature).masked_fill(excluded, smallest)  # (..., queries, keys)
    return (scaled.softmax(-1) * similarities).sum(-1)  # (..., queries)


@dataclass(frozen=True)
class TokenwiseMatching:
    """Matching of each token on its own, by a function such as :func:`match_greedily` for the tokens of both sides."""

    match_tokens: Callable[[Tensor, Tensor, float], Tensor]

    def __call__(
        self, similarities: Tensor, candidate: TokenMass, reference: TokenMass, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sums of both sides' matched similarities, shape (batch,) each."""
        matched = self.match_tokens(similarities, reference.mask, temperature)  # (batch, candidate tokens)
        other_matched = self.match_tokens(similarities.mT, candidate.mask, temperature)  # (batch, reference tokens)
        return (matched * candidate.weights).sum(1), (other_matched * reference.weights).sum(1)


TOKENWISE_MATCHINGS: dict[str, Matching] = {
    "max": TokenwiseMatching(match_greedily),
    "softmax": TokenwiseMatching(match_by_softmax),
}


class MatchedTokens(NamedTuple):
    """Tokens of the candidates or of the references of pairs, packed in the order of the pairs."""

    ids: Tensor  # (tokens,)
    best: Tensor  # similarity of each token to the most similar one of the other text, (tokens, layers)
    lengths: Tensor  # tokens per text, (pairs,)


@dataclass(frozen=True)
class MatchedPairs:
    """Matched tokens of pairs of texts, which are weighted when document frequencies are known."""

    candidate: MatchedTokens
    reference: MatchedTokens


def match_pairs(vectors: TokenVectors, candidates: Ints, references: Ints) -> MatchedPairs:
    """Match pairs of texts greedily, given by the indices of each pair's candidate and reference, shape (pairs,) each.

    Pairs in which either text has no content token get similarity 0 everywhere, hence score 0. The result is on the
    vectors' device.
    """
    device = vectors.vectors.device
    texts = vectors.texts
    num_texts = len(texts.lengths)
    sides = np.stack([candidates, references])  # (2, pairs)
    # The pairs (a, b) and (b, a) have the same similarities, so match (smaller index, larger index) for both.
    smaller, larger = np.sort(sides, axis=0)  # (pairs,) each
    # Encode each pair as one integer, which is faster to look up than a tuple. The quotient and the remainder of a
    # division by the number of texts decode it.
    codes = smaller * num_texts + larger  # (pairs,)
    distinct_codes, pair_of_each = find_distinct(codes.tolist())  # (distinct pairs,), (pairs,)
    is_each_distinct = len(distinct_codes) == len(codes)
    if is_each_distinct:
        best = _match_distinct(vectors, sides)  # (tokens, layers) each
    else:
        distinct = np.stack([distinct_codes // num_texts, distinct_codes % num_texts])  # (2, distinct pairs)
        best = _match_distinct(vectors, distinct)  # (tokens, layers) each
        best = _repeat_pairs(best, texts, distinct, sides, pair_of_each)  # (tokens, layers) each
    matched = []
    for indices, similarities in zip(sides, best, strict=True):
        ids = texts.ids[texts.places(indices)]  # (tokens,)
        matched.append(MatchedTokens(send(ids, device), similarities, send(texts.lengths[indices], device)))
    return MatchedPairs(*matched)


def _repeat_pairs(
    best: list[Tensor], texts: TokenizedTexts, distinct: Ints, sides: Ints, pair_of_each: Ints
) -> list[Tensor]:
    """Return the similarities of all pairs, of their candidates and of their references, from those of distinct pairs.

    A distinct pair has the text with the smaller index first. Where the candidate of a pair has the larger index, the
    sides are swapped: its similarities are those of the distinct pair's second text.

    Args:
        best: similarities of the tokens of the texts with the smaller and with the larger index, (tokens, layers) each.
        texts: the texts.
        distinct: the smaller and the larger index of each distinct pair, shape (2, distinct pairs).
        sides: the candidate and the reference of each pair, shape (2, pairs).
        pair_of_each: index of each pair among the distinct pairs, shape (pairs,).

    For example, texts 0 and 1 have one and two tokens, and the pairs are (0, 1) and (1, 0). The only distinct pair is
    (0, 1), whose tokens are 0a, then 1a and 1b. The candidates of the pairs have the tokens 0a, then 1a and 1b; their
    references have 1a and 1b, then 0a.
    """
    device = best[0].device
    # The tokens of the first texts of all distinct pairs, followed by the tokens of their second texts.
    packed = torch.cat(best)  # (tokens of both, layers)
    lengths = texts.lengths[distinct].ravel()  # (2 * distinct pairs,)
    starts = (lengths.cumsum() - lengths).reshape(distinct.shape)  # first token in `packed`, (2, distinct pairs)
    # The row of `distinct` that has the text: 1 for a candidate with the larger index of its pair, else 0.
    candidate_row = (sides[0] > sides[1]).astype(np.int64)  # (pairs,)
    reference_row = 1 - candidate_row  # (pairs,)
    repeated = []
    for indices, row in zip(sides, (candidate_row, reference_row), strict=True):
        first_tokens = starts[row, pair_of_each]  # (pairs,)
        places = places_of(first_tokens, texts.lengths[indices])  # (tokens,)
        repeated.append(packed.index_select(0, send(places, device)))  # (tokens, layers)
    return repeated


def find_distinct(numbers: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the distinct numbers, in order of their first occurrence, and the index of each number among them."""
    # A dictionary keeps the order of first occurrence, unlike np.unique.
    indices = {number: index for index, number in enumerate(dict.fromkeys(numbers))}
    distinct = np.array([*indices], np.int64)
    return distinct, np.array([indices[number] for number in numbers], np.int64)


def _match_distinct(vectors: TokenVectors, sides: Ints) -> list[Tensor]:
    """Return the best similarity of each token of pairs of texts, shape (tokens, layers) for each side.

    ``sides`` has the index of each pair's first and second text, shape (2, pairs).
    """
    device = vectors.vectors.device
    texts = vectors.texts
    limit = numbers_per_step(device)
    num_layers, _, width = vectors.vectors.shape
    lengths = texts.lengths[sides]  # (2, pairs)
    starts = lengths.cumsum(1) - lengths  # first token of each text in the result of its side, (2, pairs)
    best = [vectors.vectors.new_zeros(num_tokens, num_layers) for num_tokens in lengths.sum(1).tolist()]
    scored = np.flatnonzero(texts.has_content[sides].all(0))  # (scored pairs,)
    longer = lengths[:, scored].max(0)  # (scored pairs,)
    # Numbers in memory for a pair: the similarities, and the padded vectors of both texts.
    costs = (longer * (longer + 2 * width) * num_layers).tolist()
    # All batches use one buffer for each side, because the allocator would be fragmented otherwise.
    buffers = vectors.vectors.new_empty(2, min(limit, sum(costs)) // 2)  # (sides, numbers)
    for batch in token_batches(costs, limit):
        pairs = scored[batch]  # (pairs of the batch,)
        masks = []
        states = []
        for indices, buffer in zip(sides[:, pairs], buffers, strict=True):
            tokens, mask = texts.locate(indices)  # (pairs, longest)
            # Without a mask, padding repeats the last token of its text, which changes no maximum.
            padded = vectors.gather(tokens, None, buffer)  # (layers, pairs, longest, width)
            masks.append(mask)
            states.append(padded.flatten(0, 1).unsqueeze(1))  # (layers * pairs, 1, longest, width)
        # Each pair of a layer is a group of one text per side, so that no other texts are matched with each other. The
        # shapes are (layers * pairs, 1, longest, 1) and (layers * pairs, 1, 1, other longest).
        matched = match_blocks(states[0], states[1], limit)
        for of_side, first_tokens, mask, similarities in zip(best, starts[:, pairs], masks, matched, strict=True):
            # Both lists of places leave out padding: those in the padded batch, and those in the packed result.
            real = send(mask.ravel().nonzero()[0], device)  # (real tokens,)
            chosen = similarities.view(num_layers, -1).index_select(1, real)  # (layers, real tokens)
            padded_places = first_tokens[:, None] + np.arange(mask.shape[1])  # (pairs, longest)
            places = padded_places[mask]  # (real tokens,)
            # Pairs without content are not in a batch, and keep the similarity 0.
            of_side.index_copy_(0, send(places, device), chosen.T)
    return best


def match_blocks(states: Tensor, other_states: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Match all pairs of texts of each group greedily, in steps, so that a matrix of two long texts never exists.

    Unit vectors have the shape (groups, texts, tokens, width) on each side. Padding repeats a token of its text, which
    changes no maximum. ``limit`` is the number of similarities per step.

    Returns:
        The best similarity of each token in each text of the other side, shape (groups, texts, tokens, other texts),
        and the other way round, shape (groups, texts, other texts, other tokens).
    """
    groups, texts, length, width = states.shape
    _, other_texts, other_length, _ = other_states.shape
    rows = max(limit // (groups * texts * other_texts * other_length), 1)  # tokens per text and step
    # Results are written in place, because small tensors between large blocks would fragment the allocator's memory.
    best = states.new_empty(groups, texts, length, other_texts)
    other_best = states.new_full((groups, texts, other_texts, other_length), -torch.inf)
    for start in range(0, length, rows):
        part = states[:, :, start : start + rows].reshape(groups, -1, width)  # (groups, texts * rows, width)
        block = cosine_similarities(part, other_states.flatten(1, 2))  # (groups, texts * rows, other tokens)
        block = block.view(groups, texts, -1, other_texts, other_length)
        best[:, :, start : start + rows] = block.amax(-1)  # (groups, texts, rows, other texts)
        torch.maximum(other_best, block.amax(2), out=other_best)  # (groups, texts, other texts, other tokens)
    return best, other_best
