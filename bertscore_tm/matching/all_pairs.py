"""Scores of all pairs of two lists of texts, from one pass over the similarities of their tokens."""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertscore_tm.device.memory import numbers_per_step, send
from bertscore_tm.matching.greedy import find_distinct, match_blocks
from bertscore_tm.matching.scores import harmonic_mean
from bertscore_tm.matching.vectors import Ints, TokenVectors, token_batches


class _Block(NamedTuple):
    """Texts of similar length that are matched together."""

    places: Tensor  # of each text in the list, (texts,)
    tokens: Tensor  # places of their tokens in the packed vectors, (texts, longest); padding repeats the last one
    shares: Tensor  # share of each token in its text's mean, 0 for padding, (texts, longest)


def score_all_pairs(
    vectors: TokenVectors, weights: Tensor, candidates: Sequence[int], references: Sequence[int] | None = None
) -> Tensor:
    """Return precision, recall and F1 of every candidate with every reference.

    Duplicate texts are matched once. Without references, the candidates are scored with each other; the similarities
    of two texts are then computed once, as the precision of (a, b) is the recall of (b, a).

    Args:
        vectors: token vectors of all texts, of one layer.
        weights: weight of each token id, shape (vocabulary,).
        candidates: index of each candidate text in the vectors.
        references: index of each reference text. Default: the candidates.

    Returns:
        Shape (3, candidates, references), float32. Pairs in which a text has no content or no weight score 0.
    """
    device = vectors.vectors.device
    limit = numbers_per_step(device)
    rows, row_of_candidate = find_distinct(candidates)  # (rows,), (candidates,)
    row_blocks = _make_blocks(vectors, weights, rows, limit)
    if references is None:
        columns = rows
        column_of_reference = row_of_candidate
        precision = weights.new_zeros(len(rows), len(columns))  # (rows, columns)
        # Both share memory, because the recall of (a, b) is the precision of (b, a). So each pair of blocks fills both.
        recall = precision.T  # (rows, columns)
        block_pairs = list(combinations_with_replacement(row_blocks, 2))
    else:
        columns, column_of_reference = find_distinct(references)  # (columns,), (references,)
        precision = weights.new_zeros(len(rows), len(columns))  # (rows, columns)
        recall = torch.zeros_like(precision)  # (rows, columns)
        block_pairs = list(product(row_blocks, _make_blocks(vectors, weights, columns, limit)))

    for block, other in block_pairs:
        states = vectors.vectors[:, block.tokens]  # (1, texts, longest, width)
        other_states = vectors.vectors[:, other.tokens]  # (1, other texts, other longest, width)
        best, other_best = match_blocks(states, other_states, limit)
        best = best[0].to(weights.dtype)  # (texts, longest, other texts)
        other_best = other_best[0].to(weights.dtype)  # (texts, other texts, other longest)
        where = block.places[:, None], other.places  # (texts, other texts) when broadcast
        precision[where] = torch.einsum("itj,it->ij", best, block.shares)
        recall[where] = torch.einsum("ijt,jt->ij", other_best, other.shares)

    # Special tokens match each other, so that a text without content would have a score.
    has_content = vectors.texts.has_content  # (texts,)
    is_scored = send(has_content[rows][:, None] & has_content[columns], device)  # (rows, columns)
    # Rounding can push the mean of similarities of 1 beyond 1.
    precision = torch.where(is_scored, precision, 0.0).clamp(-1, 1)  # (rows, columns)
    recall = torch.where(is_scored, recall, 0.0).clamp(-1, 1)  # (rows, columns)
    scores = torch.stack([precision, recall, harmonic_mean(precision, recall)]).float()  # (3, rows, columns)
    scores = scores[:, send(row_of_candidate, device)]  # (3, candidates, columns)
    return scores[:, :, send(column_of_reference, device)]  # (3, candidates, references)


def _make_blocks(vectors: TokenVectors, weights: Tensor, indices: Ints, limit: int) -> list[_Block]:
    """Divide the texts with these indices into blocks."""
    device = vectors.vectors.device
    texts = vectors.texts
    lengths = texts.lengths[indices]  # (texts,)
    # Texts without tokens have score 0, and no maximum.
    with_tokens = np.flatnonzero(lengths)  # (texts with tokens,)
    # The similarities of two blocks with this many tokens each are as many as the limit.
    most_tokens = math.isqrt(limit)
    blocks = []
    for batch in token_batches(lengths[with_tokens].tolist(), most_tokens):
        places = with_tokens[batch]  # (texts of the block,)
        tokens, is_real = texts.locate(indices[places])  # (texts, longest)
        token_weights = weights[send(texts.ids[tokens], device)]  # (texts, longest)
        shares = torch.where(send(is_real, device), token_weights, 0.0)  # (texts, longest)
        # The shares of a text without weight stay 0, instead of NaN.
        totals = shares.sum(1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)  # (texts, 1)
        shares = shares / totals  # (texts, longest)
        blocks.append(_Block(send(places, device), send(tokens, device), shares))
    return blocks
