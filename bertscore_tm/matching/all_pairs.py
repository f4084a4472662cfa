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
    rows, row_places = find_distinct(candidates)
    blocks = _make_blocks(vectors, weights, rows, limit)
    if references is None:
        columns, column_places = rows, row_places
        precision = weights.new_zeros(len(rows), len(columns))  # (rows, columns)
        recall = precision.T  # (rows, columns), the same memory
        pairs = list(combinations_with_replacement(blocks, 2))
    else:
        columns, column_places = find_distinct(references)
        precision = weights.new_zeros(len(rows), len(columns))  # (rows, columns)
        recall = torch.zeros_like(precision)
        pairs = list(product(blocks, _make_blocks(vectors, weights, columns, limit)))
    for block, other in pairs:
        states = vectors.vectors[:, block.tokens]  # (1, texts, longest, width)
        other_states = vectors.vectors[:, other.tokens]  # (1, other texts, other longest, width)
        best, other_best = match_blocks(states, other_states, limit)
        where = block.places[:, None], other.places  # (rows, columns)
        precision[where] = torch.einsum("itj,it->ij", best[0].to(weights.dtype), block.shares)
        recall[where] = torch.einsum("ijt,jt->ij", other_best[0].to(weights.dtype), other.shares)
    has_content = vectors.texts.has_content  # (texts,)
    is_scored = send(has_content[rows][:, None] & has_content[columns], device)  # (rows, columns)
    # Rounding can push the mean of similarities of 1 beyond 1.
    precision = torch.where(is_scored, precision, 0.0).clamp(-1, 1)
    recall = torch.where(is_scored, recall, 0.0).clamp(-1, 1)
    scores = torch.stack([precision, recall, harmonic_mean(precision, recall)]).float()  # (3, rows, columns)
    return scores[:, send(row_places, device)][:, :, send(column_places, device)]  # (3, candidates, references)


def _make_blocks(vectors: TokenVectors, weights: Tensor, indices: Ints, limit: int) -> list[_Block]:
    """Divide the texts with these indices into blocks."""
    device = vectors.vectors.device
    texts = vectors.texts
    lengths = texts.lengths[indices]  # (texts,)
    # Texts without tokens have score 0, and no maximum.
    with_tokens = np.flatnonzero(lengths)  # (texts with tokens,)
    blocks = []
    for batch in token_batches(lengths[with_tokens].tolist(), math.isqrt(limit)):
        places = with_tokens[batch]
        tokens, is_real = texts.locate(indices[places])  # (texts, longest)
        token_weights = weights[send(texts.ids[tokens], device)]  # (texts, longest)
        shares = torch.where(send(is_real, device), token_weights, 0.0)  # (texts, longest)
        shares = shares / shares.sum(1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
        blocks.append(_Block(send(places, device), send(tokens, device), shares))
    return blocks
