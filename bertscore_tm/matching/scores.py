"""Token weights with and without idf, and precision, recall and F1 of matched tokens, reduced and rescaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bertscore_tm.matching.greedy import MatchedPairs, MatchedTokens


@dataclass(frozen=True)
class DocumentFrequencies:
    """Number of documents with each token id, ``counts``, shape (vocabulary,), and of all, shape (); both int64."""

    counts: Tensor
    num_documents: Tensor

    @classmethod
    def of(cls, ids: Tensor, lengths: Tensor, vocab_size: int) -> DocumentFrequencies:
        """Count packed ids, shape (tokens,), once per document; equal documents count each.

        Example:
            >>> DocumentFrequencies.of(torch.tensor([1, 1, 2, 2]), torch.tensor([3, 1]), 4).counts.tolist()
            [0, 1, 2, 0]
        """
        documents = segment_ids(lengths, len(ids))  # (tokens,)
        # A token counts once per document, so count the distinct pairs of document and token. Each pair is encoded as
        # one integer; its remainder after division by the vocabulary's size is the token id.
        pairs = torch.unique(documents * vocab_size + ids.long())  # (distinct pairs,)
        counts = torch.bincount(pairs % vocab_size, minlength=vocab_size)  # (vocabulary,)
        return cls(counts, torch.tensor(len(lengths), device=ids.device))

    def __add__(self, other: DocumentFrequencies) -> DocumentFrequencies:
        return DocumentFrequencies(self.counts + other.counts, self.num_documents + other.num_documents)

    def __radd__(self, other: object) -> DocumentFrequencies:
        """Return the frequencies themselves for the 0 that ``sum`` starts with."""
        if other == 0:
            return self
        return NotImplemented


def idf_weights(frequencies: DocumentFrequencies) -> Tensor:
    r"""Return the inverse document frequency of every token id.

    .. math:: \mathrm{idf}(w) = \log \frac{M + 1}{\mathrm{df}(w) + 1}

    with M documents (Zhang et al. 2020, section 3, with plus-one smoothing), shape (vocabulary,), float64 where the
    device has it.
    """
    dtype = accumulator(frequencies.counts.device)
    documents = frequencies.num_documents.to(dtype)
    return torch.log((documents + 1) / (frequencies.counts.to(dtype) + 1))


def accumulator(device: torch.device) -> torch.dtype:
    """Return the dtype of weights and sums: float64, or float32 on Apple's GPUs, which do not support it."""
    return torch.float32 if device.type == "mps" else torch.float64


def harmonic_mean(precision: Tensor, recall: Tensor) -> Tensor:
    """Return F1 = 2PR/(P+R), 0 where P + R = 0.

    Where precision or recall is negative, the quotient can have any size; it is clamped to [-1, 1]. See also
    :func:`selection_f1`.

    Example:
        >>> harmonic_mean(torch.tensor([0.5, 0.0]), torch.tensor([1.0, 0.0]))
        tensor([0.6667, 0.0000])
    """
    total = precision + recall
    defined = total != 0
    # Divide by 1 where the total is 0, because NaN would remain in the gradient.
    quotient = 2 * precision * recall / torch.where(defined, total, 1)
    return torch.where(defined, quotient, 0.0).clamp(-1, 1)


def selection_f1(precision: Tensor, recall: Tensor) -> Tensor:
    """Return F1 to train on or to choose by: 2PR/(P+R) where both are positive, else min(P, R).

    2PR/(P+R) is meaningless where P or R is negative: P = .0282 and R = -.0317 give .51 for two unrelated texts. This
    F1 is continuous, lies between P and R, and has finite gradients.

    Example:
        >>> selection_f1(torch.tensor([0.5, -0.2]), torch.tensor([1.0, 0.2]))
        tensor([ 0.6667, -0.2000])
    """
    smaller = torch.minimum(precision, recall)
    positive = smaller > 0
    # Both operands of `where` are differentiated, so the unused quotient must be finite as well.
    unused = ~positive
    p = precision.masked_fill(unused, 1.0)
    r = recall.masked_fill(unused, 1.0)
    return torch.where(positive, 2 * p * r / (p + r), smaller)


def precision_recall_f1(
    pairs: MatchedPairs, weights: Tensor, f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the scores of pairs of texts.

    .. math::
        P = \frac{\sum_i w(\hat x{}_i) \max_j s_{ij}}{\sum_i w(\hat x{}_i)}, \quad
        R = \frac{\sum_j w(x_j) \max_i s_{ij}}{\sum_j w(x_j)}, \quad F_1 = \frac{2PR}{P+R}

    (Zhang et al. 2020, section 3.)

    ``weights`` are those of each token id, shape (vocabulary,); ``f1`` is a function of precision and recall. Scores
    have the shape (layers, pairs), float32; weights that sum to 0 give 0.
    """
    # Rounding can push the mean of similarities of 1 beyond 1.
    precision = _weighted_mean(pairs.candidate, weights).clamp(-1, 1)
    recall = _weighted_mean(pairs.reference, weights).clamp(-1, 1)
    # The sums of many weights need float64, but scores do not.
    return precision.float(), recall.float(), f1(precision, recall).float()


def best_of_references(scores: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return each candidate's best score over its references, and the index of the first reference that has it.

    Precision, recall and F1 take their own maximum each, as in the reference package. Scores are those of the pairs,
    candidate by candidate, shape (layers, pairs); counts of references are at least 1, shape (candidates,).

    Example:
        >>> best_of_references(torch.tensor([[0.1, 0.7, 0.4]]), torch.tensor([2, 1]))
        (tensor([[0.7000, 0.4000]]), tensor([[1, 0]]))
    """
    num_pairs = scores.shape[1]
    # With as many pairs as candidates, each candidate has exactly one reference, because it has at least one.
    if num_pairs == len(counts):
        return scores, torch.zeros_like(scores, dtype=torch.long)
    owner = segment_ids(counts, num_pairs)  # (pairs,)
    starts = counts.cumsum(0) - counts  # (candidates,)
    # Index of each pair's reference among the references of its candidate.
    index = torch.arange(num_pairs, device=counts.device) - starts[owner]  # (pairs,)
    owner = owner.expand_as(scores)  # (layers, pairs)
    best = scores.new_full((len(scores), len(counts)), -torch.inf)  # (layers, candidates)
    best = best.scatter_reduce(1, owner, scores, reduce="amax")
    is_best = scores == best.gather(1, owner)  # (layers, pairs)
    # References that are not the best get the largest number, so that the minimum is the first of the best.
    index = torch.where(is_best, index, num_pairs)  # (layers, pairs)
    first = torch.full_like(best, num_pairs, dtype=torch.long)  # (layers, candidates)
    first = first.scatter_reduce(1, owner, index, reduce="amin")
    return best, first


def segment_ids(lengths: Tensor, num_elements: int | None = None) -> Tensor:
    """Return the segment number of every element of a packed sequence with segments of these lengths.

    ``num_elements`` is the sum of the lengths; passing it avoids a synchronization with an accelerator.

    Example:
        >>> segment_ids(torch.tensor([2, 0, 1])).tolist()
        [0, 0, 2]
    """
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=num_elements)


def _weighted_mean(tokens: MatchedTokens, weights: Tensor) -> Tensor:
    """Return the weighted mean similarity of each text's tokens, shape (layers, pairs)."""
    num_pairs = len(tokens.lengths)
    owner = segment_ids(tokens.lengths, len(tokens.ids))  # (tokens,)
    token_weights = weights[tokens.ids][:, None]  # (tokens, 1)
    weighted = tokens.best.to(weights.dtype) * token_weights  # (tokens, layers)
    total = weights.new_zeros(num_pairs, 1).index_add(0, owner, token_weights)  # (pairs, 1)
    sums = weights.new_zeros(num_pairs, tokens.best.shape[1]).index_add(0, owner, weighted)  # (pairs, layers)
    has_weight = total > 0  # (pairs, 1)
    # Divide by 1 where the total is 0, because 0 / 0 would be NaN.
    means = sums / torch.where(has_weight, total, 1)  # (pairs, layers)
    return torch.where(has_weight, means, 0.0).T  # (layers, pairs)
