"""States of the metric: flat tensors of fixed dtypes, which ranks can gather.

With token weights that are known, a pair adds its scores, or only adds to sums. With idf over the references, weights
depend on the whole corpus: each token adds its id and best similarity, and scores are computed when document
frequencies are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.core.matching import MatchedPairs
from bertscore_tm.core.token_vectors import segment_ids
from bertscore_tm.scoring.corpus import MatchedTexts
from bertscore_tm.scoring.messages import count_zero

__all__ = [
    "SCORE_STATES",
    "TOKEN_STATES",
    "append",
    "as_indices",
    "first_occurrences",
    "indices_fit",
    "mean_of_sums",
    "num_pairs",
    "num_values",
    "pack_scores",
    "pack_tokens",
    "sums_of_scores",
    "token_dtypes",
    "unpack_scores",
    "unpack_tokens",
]

# Names and dtypes. A rank without pairs contributes an empty tensor of the same dtype, as collectives require.
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
# Offset of ids of two bytes, which are stored as int16, since few operations support uint16.
_ID_OFFSET = 2**15
# Trailing parts with fewer values than one of these sizes are joined when there are so many of them.
_SIZES = (16, 1024, 65_536)
_PARTS_TO_JOIN = 64
# Sums have the unit 2**-31. Scores are between -1 and 1: sums of 2**31 pairs fit into int64.
_FIXED_POINT = 2.0**31


def append(parts: Sequence[Tensor], values: Tensor) -> list[Tensor]:
    """Return the parts of a list state with another part, joining small parts.

    A tensor takes some hundred bytes in addition to its values, so that parts of single pairs would multiply the size
    of the state. Many parts are joined at a time, and large ones are never copied again.

    Args:
        parts: flat tensors.
        values: flat tensor of the same dtype and device.

    Returns:
        Fewer and larger parts with the same values.

    Example:
        >>> parts = []
        >>> for number in range(200):
        ...     parts = append(parts, torch.tensor([number]))
        >>> [len(part) for part in parts]
        [190, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    joined = [*parts, values]
    for size in _SIZES:
        start = len(joined)
        while start and len(joined[start - 1]) < size:
            start -= 1
        if len(joined) - start >= _PARTS_TO_JOIN:
            joined[start:] = [torch.cat(joined[start:])]
    return joined


def sums_of_scores(scores: Tensor) -> Tensor:
    """Return the number of pairs, the number of pairs with F1 0, and the sums of all scores as integers.

    Sums of integers are exact: they do not depend on the order of pairs, batches and ranks, nor on the device.

    Args:
        scores: shape (3, layers, pairs).

    Returns:
        Shape (2 + 3 * layers,), int64; sums in units of 2**-31.

    Example:
        >>> sums_of_scores(torch.tensor([[[0.5, 1.0]], [[0.25, 0.0]], [[0.0, 0.0]]])).tolist()
        [2, 2, 3221225472, 536870912, 0]
    """
    sums = (scores * _FIXED_POINT).round().long().sum(-1)
    counts = torch.stack([torch.tensor(scores.shape[-1], device=scores.device), count_zero(scores)])
    return torch.cat([counts, sums.flatten()])


def mean_of_sums(totals: Tensor) -> Tensor:
    """Return mean scores.

    Args:
        totals: sum of results of :func:`sums_of_scores`, over at least one pair.

    Returns:
        Shape (3, layers), float64 on the CPU.

    Example:
        >>> mean_of_sums(sums_of_scores(torch.tensor([[[0.5, 1.0]], [[0.25, 0.0]], [[0.0, 0.0]]]))).flatten()
        tensor([0.7500, 0.1250, 0.0000], dtype=torch.float64)
    """
    totals = totals.cpu()
    return totals[2:].reshape(3, -1).double() / _FIXED_POINT / totals[0]


def pack_scores(scores: Tensor) -> Tensor:
    """Flatten scores pair by pair.

    Args:
        scores: shape (3, layers, pairs).

    Returns:
        Shape (pairs * 3 * layers,).
    """
    return scores.permute(2, 0, 1).flatten()


def unpack_scores(flat: Tensor, num_layers: int) -> Tensor:
    """Invert :func:`pack_scores`.

    Args:
        flat: shape (pairs * 3 * layers,).
        num_layers: number of layers.

    Returns:
        Shape (3, layers, pairs).
    """
    return flat.reshape(-1, 3, num_layers).permute(1, 2, 0)


def token_dtypes(vocab_size: int) -> dict[str, torch.dtype]:
    """Return the dtypes of token states.

    Args:
        vocab_size: number of token ids.

    Returns:
        A dtype for each of ``TOKEN_STATES``; two bytes per id for vocabularies of up to 65,536.

    Example:
        >>> token_dtypes(30_522)["candidate_ids"], token_dtypes(250_002)["candidate_ids"]
        (torch.int16, torch.int32)
    """
    id_dtype = torch.int16 if vocab_size <= 2 * _ID_OFFSET else torch.int32
    return TOKEN_STATES | dict.fromkeys(("candidate_ids", "reference_ids"), id_dtype)


def pack_tokens(matched: MatchedTexts, vocab_size: int) -> dict[str, Tensor]:
    """Return token states of matched pairs.

    Args:
        matched: the pairs.
        vocab_size: number of token ids.

    Returns:
        A tensor for each of ``TOKEN_STATES``.
    """
    packed = {"reference_counts": matched.counts}
    for name, dtype in token_dtypes(vocab_size).items():
        if name != "reference_counts":
            values = getattr(matched.pairs, name)
            packed[name] = (values - _ID_OFFSET if dtype == torch.int16 else values).to(dtype)
    return packed


def unpack_tokens(state: dict[str, Tensor], num_layers: int, keep: Tensor | None) -> MatchedTexts:
    """Restore matched pairs from token states, without candidates that are not kept.

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
        ids, lengths = state[f"{side}_ids"], state[f"{side}_lengths"].long()
        ids = ids.long() + (_ID_OFFSET if ids.dtype == torch.int16 else 0)
        best = state[f"{side}_best"].reshape(-1, num_layers)
        if pairs is not None:
            tokens = pairs[segment_ids(lengths)]
            ids, best, lengths = ids[tokens], best[tokens], lengths[pairs]
        sides |= {f"{side}_ids": ids, f"{side}_best": best, f"{side}_lengths": lengths}
    return MatchedTexts(MatchedPairs(**sides), counts if keep is None else counts[keep], num_truncated=0)


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
    """Return whether all pairs have an index or none has.

    Args:
        sizes: number of pairs and number of indices of each metric or rank, shape (metrics, 2).

    Example:
        >>> indices_fit(torch.tensor([[3, 3], [2, 2]])), indices_fit(torch.tensor([[3, 3], [2, 0]]))
        (True, False)
    """
    num_pairs, num_indices = sizes.unbind(1)
    return bool((num_indices == 0).all() or (num_indices == num_pairs).all())


def as_indices(indices: Sequence[int] | Tensor, num_pairs: int) -> Tensor:
    """Return the indices of pairs as a tensor.

    Args:
        indices: integers.
        num_pairs: number of pairs.

    Returns:
        Shape (pairs,), int64.

    Raises:
        ValueError: they are not one integer per pair.

    Example:
        >>> as_indices([3, 1], 2)
        tensor([3, 1])
    """
    numbers = indices if isinstance(indices, Tensor) else torch.tensor(indices, device="cpu")
    are_integers = not numbers.is_floating_point() and numbers.dtype != torch.bool
    if numbers.shape != (num_pairs,) or (num_pairs and not are_integers):
        raise ValueError(
            f"indices must be {num_pairs} integers, one per pair; got {numbers.dtype}, shape {tuple(numbers.shape)}"
        )
    return numbers.long()


def num_pairs(states: Mapping[str, Any], num_layers: int) -> int:
    """Return how many pairs the states of a metric hold, in lists and in sums.

    Args:
        states: as in ``metric_state``.
        num_layers: layers per score.
    """
    if "reference_counts" in states:
        return num_values(states["reference_counts"])
    return num_values(states["scores"]) // (3 * num_layers) + int(states["totals"][0])


def num_values(parts: Sequence[Tensor]) -> int:
    """Return how many values a list state holds."""
    return sum(len(part) for part in parts)
