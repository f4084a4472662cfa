"""States of the metric, their combination over ranks to the scores of all pairs, and the results of ``compute``.

With token weights that are known, a pair adds its scores. With idf over the references, weights
depend on the whole corpus: each token adds its id and best similarity, and scores are computed when document
frequencies are known.
"""

import json
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from bertscore_tm.encoder.signature import describe_differences
from bertscore_tm.matching.greedy import MatchedTokens
from bertscore_tm.matching.scores import DocumentFrequencies, segment_ids
from bertscore_tm.scoring.corpus import MatchedTexts, compute_scores
from bertscore_tm.scoring.idf import weights_by_idf
from bertscore_tm.scoring.rescaling import Baseline, rescale_scores
from bertscore_tm.scoring.settings import ScoreSettings
from bertscore_tm.utilities.score_names import SCORE_NAMES

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


def pack_tokens(matched: MatchedTexts) -> dict[str, Tensor]:
    """Return a tensor for each of ``TOKEN_STATES``."""
    states = {"reference_counts": matched.counts}
    for side, tokens in (("candidate", matched.candidate), ("reference", matched.reference)):
        states |= {f"{side}_ids": tokens.ids, f"{side}_best": tokens.best, f"{side}_lengths": tokens.lengths}
    return states


def unpack_tokens(states: Mapping[str, Tensor], num_layers: int) -> MatchedTexts:
    """Restore matched texts from token states."""
    candidate, reference = (
        MatchedTokens(
            ids=states[f"{side}_ids"].long(),
            best=states[f"{side}_best"].reshape(-1, num_layers),
            lengths=states[f"{side}_lengths"].long(),
        )
        for side in ("candidate", "reference")
    )
    return MatchedTexts(candidate, reference, states["reference_counts"].long(), num_truncated=0)


def as_indices(indices: Sequence[int] | Tensor, num_pairs: int) -> Tensor:
    """Return the indices of pairs as a tensor, shape (pairs,), int64; an error unless they are one integer per pair."""
    numbers = indices if isinstance(indices, Tensor) else torch.tensor(indices, device="cpu")
    are_integers = not numbers.is_floating_point() and numbers.dtype != torch.bool
    if numbers.shape != (num_pairs,) or (num_pairs and not are_integers):
        raise ValueError(
            f"indices must be {num_pairs} integers, one per pair; got {numbers.dtype}, shape {tuple(numbers.shape)}"
        )
    return numbers.long()


def check_indices(states: Mapping[str, Any], with_indices: bool) -> None:
    """Raise an error unless all pairs of the states, and those to add, have an index, or none has."""
    has_pairs = any(states[name] for name in ("scores", "reference_counts") if name in states)
    if has_pairs and bool(states["indices"]) != with_indices:
        raise ValueError("indices must be passed to every update or to none, also of metrics that are merged")


def encode_settings(settings: Mapping[str, str]) -> Tensor:
    """Return settings as a tensor, since only tensors are states: the bytes of their JSON, uint8."""
    return torch.tensor([*json.dumps(settings).encode()], dtype=torch.uint8, device="cpu")


def decode_settings(fingerprint: Tensor) -> dict[str, str]:
    """Return the settings of :func:`encode_settings`."""
    return dict(json.loads(bytes(fingerprint.tolist())))


def check_mergeable(settings: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Raise an error that names the settings of another metric that differ from those of a metric."""
    differences = describe_differences(settings, expected)
    if differences:
        raise ValueError(
            f"the state belongs to a metric that differs in {differences}. Create both metrics with the same arguments"
        )


@dataclass(frozen=True)
class Collectives:
    """Exchange of tensors with the other ranks; without ``dist_sync_fn`` there is only this one.

    It is a function as in torchmetrics, of a tensor on ``device`` and ``group``, which returns a list in the order of
    ranks. One-dimensional tensors may differ in length.
    """

    device: torch.device
    dist_sync_fn: Callable[..., list[Tensor]] | None = None
    group: Any = None

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in the order of ranks, on the device of this rank's."""
        if self.dist_sync_fn is None:
            return [tensor]
        with _note_on_failure():
            gathered = self.dist_sync_fn(tensor.to(self.device), group=self.group)
        return [part.to(tensor.device) for part in gathered]

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
class SyncedState:
    """Combined state of all ranks: scores before rescaling, in the order of indices or, without them, rank by rank."""

    scores: Tensor  # (3, layers, pairs)
    num_truncated: int
    frequencies: DocumentFrequencies | None  # with idf


def combine_ranks(
    states: Mapping[str, Tensor],
    collectives: Collectives,
    settings: ScoreSettings,
) -> SyncedState:
    """Combine the pairs of all ranks, of which those with equal indices count once.

    Every rank issues the same collectives in the same order, with or without pairs. One number per vocabulary entry
    (with idf) and a few per pair are exchanged, never tokens.

    ``states`` are those of this rank: a flat tensor for each of ``SCORE_STATES`` and, with idf, of ``TOKEN_STATES``;
    ``num_truncated``; and ``fingerprint``, the settings as :func:`encode_settings` returns them.
    """
    idf, num_layers = "reference_counts" in states, settings.num_layers
    indices, scores = states["indices"], states["scores"].reshape(-1, 3, num_layers)
    num_listed = len(states["reference_counts"]) if idf else len(scores)
    # Unlike the number of a rank, it finds this rank's place in any kind of gathering.
    token = secrets.randbits(62)
    facts = torch.tensor([token, num_listed, len(indices)], device=states["fingerprint"].device)
    gathered = collectives.gather(torch.cat([facts, states["num_truncated"][None], states["fingerprint"]]))
    # A rank with other settings would issue other collectives below, and all would deadlock.
    fingerprints = [decode_settings(header[4:]) for header in gathered]
    for other in fingerprints[1:]:
        differences = describe_differences(other, fingerprints[0])
        if differences:
            raise ValueError(
                f"the metrics of the ranks differ in {differences}. Create them with the same arguments on every rank"
            )
    table = torch.stack(gathered)
    sizes = table[:, 1:3]
    if not ((sizes[:, 1] == 0).all() or (sizes[:, 1] == sizes[:, 0]).all()):
        raise ValueError("some ranks passed indices to update and others did not: pass them on all ranks or on none")

    keep, all_indices = None, indices
    if sizes[:, 1].any():
        all_indices = torch.cat(collectives.gather(indices))
        is_first = torch.zeros_like(all_indices, dtype=torch.bool)
        is_first[np.unique(all_indices.cpu().numpy(), return_index=True)[1]] = True
        start = int(sizes[: table[:, 0].tolist().index(token), 1].sum())
        keep = is_first[start : start + len(indices)]
        all_indices = all_indices[is_first]

    frequencies = None
    if idf:
        matched = unpack_tokens(states, num_layers)
        ids, lengths = matched.reference.ids, matched.reference.lengths
        if keep is not None:
            counted = keep[segment_ids(matched.counts)]  # (references,)
            ids, lengths = ids[counted[segment_ids(lengths)]], lengths[counted]
        local = DocumentFrequencies.of(ids, lengths, settings.encoder.tokenizer.vocab_size)
        summed = collectives.sum(torch.cat([local.counts, local.num_documents[None]]))
        frequencies = DocumentFrequencies(summed[:-1], summed[-1])
        weighted = replace(settings, weights=weights_by_idf(frequencies, "references"))
        scores = compute_scores(matched, weighted)[0].movedim(-1, 0)  # (pairs, 3, layers)
    if keep is not None:
        scores = scores[keep]
    if table[:, 1].any():
        scores = torch.cat(collectives.gather(scores.flatten())).reshape(-1, 3, num_layers)
    pairs = scores.movedim(0, -1)
    if len(all_indices):
        pairs = pairs[..., all_indices.argsort(stable=True)]
    return SyncedState(pairs, int(table[:, 3].sum()), frequencies)


def summarize(scores: Tensor, baseline: Baseline | None, reduction: str) -> dict[str, Tensor]:
    """Return rescaled scores by name, shape (layers,), or (layers, pairs) with ``reduction="none"``."""
    values = rescale_scores(scores, baseline)
    if reduction == "mean":
        # On the CPU, as some accelerators have no float64. The mean of no pairs is 0.
        values = values.cpu().double().sum(-1) / max(values.shape[-1], 1)
    return {name: value.float() for name, value in zip(SCORE_NAMES, values, strict=True)}


def restore_dimensions(result: Any, all_layers: bool, reduction: str) -> Any:
    """Return copies of a result's tensors with the dimensions of one element, which torchmetrics squeezes.

    torchmetrics keeps the result for the next call, so that changes in place by the caller must not reach it.
    """
    if isinstance(result, dict):
        return {name: restore_dimensions(value, all_layers, reduction) for name, value in result.items()}
    num_dimensions = all_layers + (reduction == "none")
    if not isinstance(result, Tensor):
        return result
    return result.clone() if result.ndim == num_dimensions else result.reshape((1,) * num_dimensions).clone()
