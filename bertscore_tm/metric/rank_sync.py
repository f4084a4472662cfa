"""From what the ranks hold to the scores of all pairs: what is added up, what travels, in which order."""

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
from bertscore_tm.metric.states import TOKEN_STATES, first_occurrences, indices_fit, pack_scores, unpack_tokens
from bertscore_tm.scoring.corpus import best_scores

__all__ = ["Collectives", "Settled", "Share", "settle"]


class Collectives:
    """How a rank exchanges tensors with the others; without a function it is alone.

    Args:
        device: where tensors must be to travel.
        dist_sync_fn: gathers a tensor of each rank, as torchmetrics defines it: a function of the tensor and ``group``
            that returns a list in the order of ranks. One-dimensional tensors may differ in length.
        group: the process group.
    """

    def __init__(
        self, device: torch.device, dist_sync_fn: Callable[..., list[Tensor]] | None = None, group: Any = None
    ) -> None:
        self.device = device
        self.dist_sync_fn = dist_sync_fn
        self.group = group

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return everyone's tensor, in the order of ranks, where this one's is."""
        if self.dist_sync_fn is None:
            return [tensor]
        with _explained():
            everyones = self.dist_sync_fn(tensor.to(self.device), group=self.group)
        return [one.to(tensor.device) for one in everyones]

    def add(self, tensor: Tensor) -> Tensor:
        """Return the sum of everyone's tensor, all of one shape."""
        if self.dist_sync_fn is gather_all_tensors:
            total = tensor.to(self.device, copy=True)
            with _explained():
                torch.distributed.all_reduce(total, group=self.group)
            return total.to(tensor.device)
        return torch.stack(self.gather(tensor)).sum(0)


@contextmanager
def _explained() -> Generator[None, None, None]:
    """Say what it means that an exchange failed, which the backend tells in terms of connections."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(
            "BERTScore could not gather the scores of all ranks: another rank has ended, or did not answer in time. "
            "The pairs of this rank are as they were; merge_state into a BERTScore with sync_on_compute=False gives "
            "their score."
        )
        raise


@dataclass(frozen=True)
class Share:
    """What one rank holds.

    Args:
        lists: its pairs, a flat tensor for each of ``SCORE_STATES`` and, with idf, of ``TOKEN_STATES``.
        totals: sums over pairs that have left nothing else, see :func:`bertscore_tm.metric.states.sums_of_scores`.
        num_truncated: texts that were cut, shape ().
        fingerprint: equal for equal settings, int64, shape (any,).
    """

    lists: dict[str, Tensor]
    totals: Tensor
    num_truncated: Tensor
    fingerprint: Tensor


@dataclass(frozen=True)
class Settled:
    """What everyone holds together.

    Args:
        scores: one flat row of (3, layers) numbers per pair, rank by rank.
        indices: the pairs' indices; empty where they have none.
        totals: sums over pairs that have left nothing else.
        num_truncated: texts that were cut, shape ().
        num_references: number of documents, with idf.
        frequencies: in how many of them each token occurs, with idf.
    """

    scores: Tensor
    indices: Tensor
    totals: Tensor
    num_truncated: Tensor
    num_references: int | None
    frequencies: DocumentFrequencies | None = None


def settle(
    share: Share, num_pairs: int, num_layers: int, vocab_size: int, idf: bool, collectives: Collectives
) -> Settled:
    """Weight the tokens, drop repeated indices, and gather everything that a score needs.

    Every rank makes the same collective calls in the same order, with or without data. What travels is one number per
    vocabulary entry (with idf) and a few per pair, never tokens.

    Args:
        share: what this rank holds.
        num_pairs: how many pairs are in its lists.
        num_layers: layers per similarity.
        vocab_size: number of token ids.
        idf: whether tokens are weighted by their frequencies in all references of all ranks.
        collectives: how to exchange tensors.

    Returns:
        What all ranks hold together; equal on all ranks.

    Raises:
        ValueError: ranks differ in their settings, or only some of them have indices.
    """
    indices = share.lists["indices"]
    # A number that no other rank has, by which this one finds its place in any kind of gathering.
    name = secrets.randbits(62)
    facts = torch.tensor([name, num_pairs, len(indices)], device=share.totals.device)
    mine = torch.cat([facts, share.num_truncated[None], share.fingerprint, share.totals])
    everyones = collectives.gather(mine)
    # From here on a rank with other settings would make other collective calls, and all would wait for ever.
    first, settings = everyones[0], slice(4, 4 + len(share.fingerprint))
    if any(len(one) != len(first) or not torch.equal(one[settings], first[settings]) for one in everyones):
        raise ValueError("the ranks' metrics differ in model, layer, precision, limits, idf or what they keep of pairs")
    table = torch.stack(everyones)
    totals = table[:, settings.stop :]
    sizes = torch.stack([table[:, 1] + totals[:, 0], table[:, 2]], dim=1)
    if not indices_fit(sizes):
        raise ValueError("some ranks passed indices to update and others did not: all must, or none")
    rank = table[:, 0].tolist().index(name)

    keep, everyone = None, indices
    if sizes[:, 1].any():
        everyone = torch.cat(collectives.gather(indices))
        kept = first_occurrences(everyone)
        start = int(sizes[:rank, 1].sum())
        keep = kept[start : start + len(indices)]
        everyone = everyone[kept]

    num_references, frequencies = None, None
    if idf:
        matched = unpack_tokens({name: share.lists[name] for name in TOKEN_STATES}, num_layers, keep)
        local = DocumentFrequencies.of(matched.pairs.reference_ids, matched.pairs.reference_lengths, vocab_size)
        summed = collectives.add(torch.cat([local.counts, local.num_documents[None]]))
        num_references, frequencies = int(summed[-1]), DocumentFrequencies(summed[:-1], summed[-1])
        scores = pack_scores(best_scores(matched, idf_weights(frequencies))[0])
    else:
        scores = share.lists["scores"]
        if keep is not None:
            scores = scores.reshape(len(keep), 3 * num_layers)[keep].flatten()
    if table[:, 1].any():
        scores = torch.cat(collectives.gather(scores))
    return Settled(scores, everyone, totals.sum(0), table[:, 3].sum(), num_references, frequencies)
