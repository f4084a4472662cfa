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

    places: Tensor  # of each text in the list of distinct texts: its row or column of the scores, (texts,)
    tokens: Tensor  # places of their tokens in the packed vectors, (texts, longest); padding repeats the last one
    shares: Tensor  # share of each token in its text's mean, 0 at padding, (texts, longest)


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
        precision = weights.new_zeros(len(rows), len(rows))  # (rows, rows)
        for block, other in combinations_with_replacement(row_blocks, 2):
            block_precision, block_recall = _match_block_pair(vectors, block, other, limit)  # (texts, other texts) each
            precision[block.places[:, None], other.places] = block_precision
            # The other triangle is not matched, because the precision of (b, a) is the recall of (a, b).
            precision[other.places[:, None], block.places] = block_recall.T
        # A view, because all recalls are in the transposed matrix already.
        recall = precision.T  # (rows, rows)
    else:
        columns, column_of_reference = find_distinct(references)  # (columns,), (references,)
        column_blocks = _make_blocks(vectors, weights, columns, limit)
        precision = weights.new_zeros(len(rows), len(columns))  # (rows, columns)
        recall = torch.zeros_like(precision)  # (rows, columns)
        for block, other in product(row_blocks, column_blocks):
            block_precision, block_recall = _match_block_pair(vectors, block, other, limit)  # (texts, other texts) each
            precision[block.places[:, None], other.places] = block_precision
            recall[block.places[:, None], other.places] = block_recall

    # Set pairs with a text without content to 0, because their special tokens match each other.
    has_content = vectors.texts.has_content  # (texts,)
    is_scored = send(has_content[rows][:, None] & has_content[columns], device)  # (rows, columns)
    # Rounding can push the mean of similarities of 1 beyond 1.
    precision = torch.where(is_scored, precision, 0.0).clamp(-1, 1)  # (rows, columns)
    recall = torch.where(is_scored, recall, 0.0).clamp(-1, 1)  # (rows, columns)
    scores = torch.stack([precision, recall, harmonic_mean(precision, recall)]).float()  # (3, rows, columns)
    scores = scores[:, send(row_of_candidate, device)]  # (3, candidates, columns)
    return scores[:, :, send(column_of_reference, device)]  # (3, candidates, references)


def _match_block_pair(vectors: TokenVectors, block: _Block, other: _Block, limit: int) -> tuple[Tensor, Tensor]:
    """Return precision and recall of each text of a block with each text of another, (texts, other texts) each."""
    states = vectors.vectors[:, block.tokens]  # (1, texts, longest, width)
    other_states = vectors.vectors[:, other.tokens]  # (1, other texts, other longest, width)
    best, other_best = match_blocks(states, other_states, limit)
    best = best[0].to(block.shares.dtype)  # (texts, longest, other texts)
    other_best = other_best[0].to(other.shares.dtype)  # (texts, other texts, other longest)
    # Padding does not count in these weighted means, because its share is 0. The letters are: i a text, j an other
    # text, and t the tokens of one of them.
    precision = torch.einsum("itj,it->ij", best, block.shares)  # (texts, other texts)
    recall = torch.einsum("ijt,jt->ij", other_best, other.shares)  # (texts, other texts)
    return precision, recall


def _make_blocks(vectors: TokenVectors, weights: Tensor, indices: Ints, limit: int) -> list[_Block]:
    """Divide the texts with these indices into blocks."""
    device = vectors.vectors.device
    texts = vectors.texts
    lengths = texts.lengths[indices]  # (texts,)
    # Leave out texts without tokens, because they have no maximum. Their scores stay 0.
    with_tokens = np.flatnonzero(lengths)  # (texts with tokens,)
    # Two blocks with this number of tokens each have `limit` similarities.
    most_tokens = math.isqrt(limit)
    blocks = []
    for batch in token_batches(lengths[with_tokens].tolist(), most_tokens):
        places = with_tokens[batch]  # (texts of the block,)
        tokens, is_real = texts.locate(indices[places])  # (texts, longest)
        token_weights = weights[send(texts.ids[tokens], device)]  # (texts, longest)
        shares = torch.where(send(is_real, device), token_weights, 0.0)  # (texts, longest)
        # Divide by a number above 0, because the shares of a text without weight would be NaN. They stay 0.
        totals = shares.sum(1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)  # (texts, 1)
        shares = shares / totals  # (texts, longest)
        blocks.append(_Block(send(places, device), send(tokens, device), shares))
    return blocks
