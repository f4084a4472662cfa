"""Cosine similarity of token vectors, and matching each token with the tokens of the other text.

Greedy matching takes the best similarity (Zhang et al. 2020, section 3); soft matching replaces the maximum by a smooth
function of the same similarities. Everything here runs in float32 at least, with autocast off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertscore_tm.core.batching import halve_until_it_fits
from bertscore_tm.core.token_vectors import TokenVectors, segment_ids, token_batches
from bertscore_tm.user_warnings import warn_user

__all__ = ["MatchedPairs", "Matching", "match", "match_pairs", "similarity"]

Matching = Literal["max", "softmax", "logsumexp"]

# Numbers per matching step, similarities and padded vectors of all layers: 4 MB in float32, which stay in a processor's
# caches. An accelerator wants large steps.
_NUMBERS_PER_STEP = 1_000_000
_TIMES_ON_ACCELERATORS = 64
# When memory runs out, steps are halved down to this.
_FEWEST_NUMBERS = 5_000


def similarity(candidate: Tensor, reference: Tensor) -> Tensor:
    """Return the cosine similarities of all pairs of tokens.

    Args:
        candidate: unit vectors, shape (..., m, width).
        reference: unit vectors, shape (..., n, width).

    Returns:
        Shape (..., m, n), float32 at least.

    Example:
        >>> similarity(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.6, 0.8]]))
        tensor([[0.0000, 0.6000]])
    """
    dtype = torch.promote_types(torch.float32, candidate.dtype)
    with torch.autocast(device_type=candidate.device.type, enabled=False):
        return candidate.to(dtype) @ reference.to(dtype).transpose(-1, -2)


def match(
    similarities: Tensor,
    keys: Tensor,
    how: Matching = "max",
    temperature: float = 0.1,
    log_presence: Tensor | None = None,
) -> Tensor:
    r"""Return how well each query token is matched by the key tokens of the other text.

    With similarities s, n keys and temperature v:

    * ``"max"``: :math:`m_i = \max_j s_{ij}` (Zhang et al. 2020, equation 1);
    * ``"softmax"``: :math:`m_i = \sum_j \mathrm{softmax}_j(s_{ij}/v)\, s_{ij}`, between max - v log n and max;
    * ``"logsumexp"``: :math:`m_i = v \log \sum_j \exp(s_{ij}/v)`, between max and max + v log n.

    Args:
        similarities: shape (..., queries, keys).
        keys: real keys, shape (..., keys), bool. Other keys take no part.
        how: the kind of matching.
        temperature: v, above 0; not used by ``"max"`` alone.
        log_presence: logarithm of how much of each key there is, shape (..., keys), finite: added to s/v, or v times it
            to s before the maximum. Default: all of each.

    Returns:
        Shape (..., queries). 0 where there is no key.

    Raises:
        ValueError: unknown kind, or a temperature that is not positive.

    Example:
        >>> s = torch.tensor([[0.2, 0.9, 5.0]])
        >>> keys = torch.tensor([True, True, False])
        >>> round(match(s, keys).item(), 4), round(match(s, keys, "softmax", 0.1).item(), 4)
        (0.9, 0.8994)
    """
    if (how != "max" or log_presence is not None) and not temperature > 0:
        raise ValueError(f"the matching temperature must be above 0, got {temperature}")
    keys = keys.unsqueeze(-2)
    any_key = keys.any(-1)
    # Rows without keys are computed over all cells and dropped afterwards, as a softmax over nothing is NaN.
    allowed = keys | ~any_key.unsqueeze(-1)
    if how == "max":
        if log_presence is not None:
            similarities = similarities + temperature * log_presence.unsqueeze(-2)
        matched = similarities.masked_fill(~allowed, -torch.inf).amax(-1)
    elif how in ("softmax", "logsumexp"):
        scaled = similarities / temperature
        if log_presence is not None:
            scaled = scaled + log_presence.unsqueeze(-2)
        scaled = scaled.masked_fill(~allowed, -torch.inf)
        if how == "softmax":
            matched = (scaled.softmax(-1) * similarities).sum(-1)
        else:
            matched = temperature * scaled.logsumexp(-1)
    else:
        raise ValueError(f"matching={how!r} is not one of 'max', 'softmax', 'logsumexp'")
    return torch.where(any_key, matched, 0.0)


@dataclass(frozen=True)
class MatchedPairs:
    """Each token's best similarity, for several pairs of texts, packed in the order of the pairs.

    This is all that a score needs: weights and means can be applied later, when document frequencies are known.

    Args:
        candidate_ids: token ids, shape (candidate tokens,).
        candidate_best: best similarity in the reference, shape (candidate tokens, layers).
        candidate_lengths: tokens per candidate, shape (pairs,).
        reference_ids: token ids, shape (reference tokens,).
        reference_best: best similarity in the candidate, shape (reference tokens, layers).
        reference_lengths: tokens per reference, shape (pairs,).
    """

    candidate_ids: Tensor
    candidate_best: Tensor
    candidate_lengths: Tensor
    reference_ids: Tensor
    reference_best: Tensor
    reference_lengths: Tensor


def match_pairs(vectors: TokenVectors, candidates: Tensor, references: Tensor) -> MatchedPairs:
    """Match pairs of texts greedily.

    Pairs in which either text has no token of its own get similarity 0 everywhere, hence score 0. When memory runs out,
    matching continues in smaller steps, with a warning.

    Args:
        vectors: token vectors of all texts.
        candidates: number of each pair's candidate text, shape (pairs,).
        references: number of each pair's reference text, shape (pairs,).

    Returns:
        Ids and best similarities of all tokens.

    Raises:
        OutOfMemoryError: memory runs out in the smallest steps too.

    Example:
        >>> vectors = TokenVectors(
        ...     vectors=torch.tensor([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]]),
        ...     ids=torch.tensor([5, 6, 7]),
        ...     lengths=torch.tensor([2, 1]),
        ...     has_content=torch.tensor([True, True]),
        ...     truncated=torch.tensor([False, False]),
        ... )
        >>> matched = match_pairs(vectors, torch.tensor([0]), torch.tensor([1]))
        >>> matched.candidate_best.T, matched.reference_best.T
        (tensor([[0.0000, 0.8000]]), tensor([[0.8000]]))
    """
    device = vectors.vectors.device
    largest = _NUMBERS_PER_STEP * (1 if device.type == "cpu" else _TIMES_ON_ACCELERATORS)
    matched, limit = halve_until_it_fits(
        lambda limit: _match_in_steps(vectors, candidates, references, limit),
        largest,
        _FEWEST_NUMBERS,
        device,
        f"{len(candidates)} pairs of texts to match, next to the vectors of their tokens: pass fewer pairs at a time",
    )
    if limit < largest:
        warn_user(
            f"out of memory on {device} with {len(candidates)} pairs of texts matched in steps of {largest} numbers; "
            f"continued in steps of {limit} (scores are unaffected); pass fewer pairs at a time to need less memory"
        )
    return matched


def _match_in_steps(vectors: TokenVectors, candidates: Tensor, references: Tensor, limit: int) -> MatchedPairs:
    device = vectors.vectors.device
    num_layers, _, width = vectors.vectors.shape
    sides = []
    for texts in (candidates, references):
        lengths = vectors.lengths[texts]
        starts = lengths.cumsum(0) - lengths
        owner = segment_ids(lengths)
        within = torch.arange(len(owner), device=device) - starts[owner]
        ids = vectors.ids[vectors.offsets[texts][owner] + within]
        best = vectors.vectors.new_zeros(len(owner), num_layers)
        sides.append((ids, best, lengths, starts))
    (candidate_ids, candidate_best, candidate_lengths, candidate_starts) = sides[0]
    (reference_ids, reference_best, reference_lengths, reference_starts) = sides[1]

    scored = (vectors.has_content[candidates] & vectors.has_content[references]).nonzero().squeeze(1)
    longer = torch.maximum(candidate_lengths, reference_lengths)[scored]
    costs = (longer * (longer + 2 * width) * num_layers).tolist()
    # Used again and again, where the allocator would be left with holes in many places.
    memory = vectors.vectors.new_empty(2, min(limit, sum(costs)) // 2)
    for batch in token_batches(costs, limit):
        pairs = scored[torch.tensor(batch, device=device)]
        candidate, candidate_mask = vectors.pad(candidates[pairs], memory[0])
        reference, reference_mask = vectors.pad(references[pairs], memory[1])
        of_candidates, of_references = _best_of_both(candidate, candidate_mask, reference, reference_mask, limit)
        for best, starts, mask, matched in (
            (candidate_best, candidate_starts, candidate_mask, of_candidates),
            (reference_best, reference_starts, reference_mask, of_references),
        ):
            where = starts[pairs][:, None] + torch.arange(mask.shape[1], device=device)
            best[where[mask]] = matched[:, mask].T
    return MatchedPairs(
        candidate_ids=candidate_ids,
        candidate_best=candidate_best,
        candidate_lengths=candidate_lengths,
        reference_ids=reference_ids,
        reference_best=reference_best,
        reference_lengths=reference_lengths,
    )


def _best_of_both(
    candidate: Tensor, candidate_mask: Tensor, reference: Tensor, reference_mask: Tensor, limit: int
) -> tuple[Tensor, Tensor]:
    """Match both ways; every text has a token. The matrix of two long texts never exists as a whole."""
    num_layers, batch, length, _ = candidate.shape
    rows = max(limit // (num_layers * batch * reference.shape[2]), 1)
    # Written in place: small results kept between large blocks would keep the allocator from using their memory again.
    of_candidates = candidate.new_empty(num_layers, batch, length)
    of_references = candidate.new_full((num_layers, batch, reference.shape[2]), -torch.inf)
    for start in range(0, length, rows):
        stop = start + rows
        block = similarity(candidate[:, :, start:stop], reference)
        of_candidates[:, :, start:stop] = match(block, reference_mask)
        real = candidate_mask[:, start:stop, None]
        torch.maximum(of_references, block.masked_fill(~real, -torch.inf).amax(-2), out=of_references)
    return of_candidates, of_references
