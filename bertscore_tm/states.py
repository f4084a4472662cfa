"""What the metric keeps of its pairs, as flat tensors of fixed dtypes that every rank can gather.

Without idf a pair leaves its scores. With idf its weights depend on the whole corpus, so each token leaves its id and
best similarity, from which scores are computed when document frequencies are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bertscore_tm.corpus import Matched
from bertscore_tm.embeddings import segment_ids
from bertscore_tm.matching import MatchedPairs

__all__ = [
    "SCORE_STATES",
    "TOKEN_STATES",
    "first_occurrences",
    "indices_fit",
    "num_values",
    "pack_scores",
    "pack_tokens",
    "unpack_tokens",
]

# Names and dtypes. A rank without data contributes an empty tensor of the same dtype, as collectives need.
SCORE_STATES = {"scores": torch.float32, "indices": torch.int64}
TOKEN_STATES = {
    "reference_counts": torch.int32,
    "candidate_ids": torch.int32,
    "candidate_best": torch.float32,
    "candidate_lengths": torch.int32,
    "reference_ids": torch.int32,
    "reference_best": torch.float32,
    "reference_lengths": torch.int32,
}


def pack_scores(scores: Tensor) -> Tensor:
    """Lay out scores pair by pair.

    Args:
        scores: shape (3, layers, pairs).

    Returns:
        Shape (pairs * 3 * layers,).
    """
    return scores.permute(2, 0, 1).flatten()


def pack_tokens(matched: Matched) -> dict[str, Tensor]:
    """Return the token states of matched pairs.

    Args:
        matched: matched pairs.

    Returns:
        A tensor for each of ``TOKEN_STATES``.
    """
    of_pairs = {name: getattr(matched.pairs, name) for name in TOKEN_STATES if name != "reference_counts"}
    return {"reference_counts": matched.counts, **of_pairs}


def unpack_tokens(state: dict[str, Tensor], num_layers: int, keep: Tensor | None) -> Matched:
    """Put matched pairs together again, leaving out candidates that are not kept.

    Args:
        state: a flat tensor for each of ``TOKEN_STATES``.
        num_layers: layers per similarity.
        keep: candidates to keep, shape (candidates,), bool; ``None`` keeps all.

    Returns:
        The matched pairs.
    """
    counts = state["reference_counts"].long()
    pairs = None if keep is None else keep[segment_ids(counts)]
    sides: dict[str, Tensor] = {}
    for side in ("candidate", "reference"):
        ids, lengths = state[f"{side}_ids"].long(), state[f"{side}_lengths"].long()
        best = state[f"{side}_best"].reshape(-1, num_layers)
        if pairs is not None:
            tokens = pairs[segment_ids(lengths)]
            ids, best, lengths = ids[tokens], best[tokens], lengths[pairs]
        sides |= {f"{side}_ids": ids, f"{side}_best": best, f"{side}_lengths": lengths}
    return Matched(MatchedPairs(**sides), counts if keep is None else counts[keep], num_truncated=0)


def first_occurrences(values: Tensor) -> Tensor:
    """Mark the first of each distinct value.

    Args:
        values: integers, shape (n,).

    Returns:
        Shape (n,), bool.

    Example:
        >>> first_occurrences(torch.tensor([7, 3, 7])).tolist()
        [True, True, False]
    """
    order = values.argsort(stable=True)
    new = torch.ones_like(values, dtype=torch.bool)
    new[1:] = values[order][1:] != values[order][:-1]
    first = torch.zeros_like(new)
    first[order[new]] = True
    return first


def indices_fit(sizes: Tensor) -> bool:
    """Tell whether all pairs have an index, or none has.

    Args:
        sizes: numbers of pairs and of indices of each part, shape (parts, 2).

    Returns:
        Whether they fit.
    """
    num_pairs, num_indices = sizes.unbind(1)
    return bool((num_indices == 0).all() or (num_indices == num_pairs).all())


def num_values(parts: Sequence[Tensor]) -> int:
    """Return how many values a list state holds."""
    return sum(len(part) for part in parts)
