"""Synchronisation of ranks: from the pairs that each rank holds to the scores of all pairs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from bertscore_tm.core.idf import DocumentFrequencies, idf_weights
from bertscore_tm.core.scores import harmonic_mean
from bertscore_tm.metric.states import (
    TOKEN_STATES,
    first_occurrences,
    indices_fit,
    pack_scores,
    sums_of_scores,
    unpack_scores,
    unpack_tokens,
)
from bertscore_tm.scoring.corpus import compute_scores

__all__ = ["Collectives", "RankState", "SyncedState", "combine_ranks"]


class Collectives:
    """Exchange of tensors with the other ranks.

    Args:
        device: device that tensors must be on to be exchanged.
        dist_sync_fn: gathers a tensor of each rank, as in torchmetrics: a function of the tensor and ``group`` that
            returns a list in the order of ranks. One-dimensional tensors may differ in length. Without it there is only
            this rank.
        group: the process group.
    """

    def __init__(
        self, device: torch.device, dist_sync_fn: Callable[..., list[Tensor]] | None = None, group: Any = None
    ) -> None:
        self.device = device
        self.dist_sync_fn = dist_sync_fn
        self.group = group

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in the order of ranks, on the device of this rank's."""
        if self.dist_sync_fn is None:
            return [tensor]
        with _note_on_failure():
            gathered = self.dist_sync_fn(tensor.to(self.device), group=self.group)
        return [one.to(tensor.device) for one in gathered]

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks, which have equal shapes."""
        if self.dist_sync_fn is gather_all_tensors:
            total = tensor.to(self.device, copy=True)
            with _note_on_failure():
                torch.distributed.all_reduce(total, group=self.group)
            return total.to(tensor.device)
        return torch.stack(self.gather(tensor)).sum(0)


@contextmanager
def _note_on_failure() -> Generator[None, None, None]:
    """Add a note to the error of a failed collective, which the backend words in terms of connections."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(
            "BERTScore could not gather the scores of all ranks, because another rank has ended or did not answer in "
            "time. The pairs of this rank are unchanged. To compute their score alone, merge_state this metric into a "
            "BERTScore with sync_on_compute=False."
        )
        raise


@dataclass(frozen=True)
class RankState:
    """State of one rank.

    Args:
        lists: a flat tensor for each of ``SCORE_STATES`` and, with idf, of ``TOKEN_STATES``.
        totals: sums over pairs that are not in the lists, see :func:`bertscore_tm.metric.states.sums_of_scores`.
        num_truncated: number of truncated texts, shape ().
        fingerprint: equal for equal settings, int64, one-dimensional.
    """

    lists: dict[str, Tensor]
    totals: Tensor
    num_truncated: Tensor
    fingerprint: Tensor


@dataclass(frozen=True)
class SyncedState:
    """Combined state of all ranks.

    Args:
        scores: precision, recall and F1 of the pairs in the lists, before rescaling, in the order of their indices or,
            without indices, rank by rank; shape (3, layers, pairs).
        totals: sums over all pairs, those in the lists and others.
        num_truncated: number of truncated texts.
        num_references: number of references, with idf.
        frequencies: number of references in which each token occurs, with idf.
    """

    scores: Tensor
    totals: Tensor
    num_truncated: int
    num_references: int | None
    frequencies: DocumentFrequencies | None


def combine_ranks(
    state: RankState,
    num_layers: int,
    vocab_size: int,
    idf: bool,
    collectives: Collectives,
    f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean,
) -> SyncedState:
    """Combine the pairs of all ranks, of which those with equal indices count once.

    Every rank issues the same collectives in the same order, with or without pairs. One number per vocabulary entry
    (with idf) and a few per pair are exchanged, never tokens.

    Args:
        state: state of this rank.
        num_layers: layers per similarity.
        vocab_size: number of token ids.
        idf: whether to weight tokens by their idf in the references of all ranks.
        collectives: exchange of tensors.
        f1: function of the precision and recall of a candidate and one reference, with idf.

    Returns:
        The same on all ranks.

    Raises:
        ValueError: ranks differ in their settings, or some of them have indices and others do not.
    """
    indices = state.lists["indices"]
    num_listed = len(state.lists["reference_counts"]) if idf else len(state.lists["scores"]) // (3 * num_layers)
    # Unlike the number of a rank, it finds this rank's place in any kind of gathering.
    token = secrets.randbits(62)
    facts = torch.tensor([token, num_listed, len(indices)], device=state.totals.device)
    gathered = collectives.gather(torch.cat([facts, state.num_truncated[None], state.fingerprint, state.totals]))
    # A rank with other settings would issue other collectives below, and all would deadlock.
    first, settings = gathered[0], slice(4, 4 + len(state.fingerprint))
    if any(len(one) != len(first) or not torch.equal(one[settings], first[settings]) for one in gathered):
        raise ValueError(
            "the metrics of the ranks differ in model, layer, precision, length limit, idf or reduction: create them "
            "with the same arguments on every rank"
        )
    table = torch.stack(gathered)
    totals = table[:, settings.stop :]
    sizes = torch.stack([table[:, 1] + totals[:, 0], table[:, 2]], dim=1)
    if not indices_fit(sizes):
        raise ValueError("some ranks passed indices to update and others did not: pass them on all ranks or on none")
    rank = table[:, 0].tolist().index(token)

    keep, all_indices = None, indices
    if sizes[:, 1].any():
        all_indices = torch.cat(collectives.gather(indices))
        kept = first_occurrences(all_indices)
        start = int(sizes[:rank, 1].sum())
        keep = kept[start : start + len(indices)]
        all_indices = all_indices[kept]

    frequencies = None
    if idf:
        matched = unpack_tokens({name: state.lists[name] for name in TOKEN_STATES}, num_layers, keep)
        local = DocumentFrequencies.of(matched.pairs.reference_ids, matched.pairs.reference_lengths, vocab_size)
        summed = collectives.sum(torch.cat([local.counts, local.num_documents[None]]))
        frequencies = DocumentFrequencies(summed[:-1], summed[-1])
        scores = pack_scores(compute_scores(matched, idf_weights(frequencies), f1)[0])
    else:
        scores = state.lists["scores"]
        if keep is not None:
            scores = scores.reshape(len(keep), 3 * num_layers)[keep].flatten()
    if table[:, 1].any():
        scores = torch.cat(collectives.gather(scores))
    pairs = unpack_scores(scores, num_layers)
    if len(all_indices):
        pairs = pairs[..., all_indices.argsort(stable=True)]
    return SyncedState(
        scores=pairs,
        totals=totals.sum(0).to(pairs.device) + sums_of_scores(pairs),
        num_truncated=int(table[:, 3].sum()),
        num_references=None if frequencies is None else int(frequencies.num_documents),
        frequencies=frequencies,
    )
