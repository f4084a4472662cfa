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
from typing import Any, Self

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
from bertscore_tm.utilities.checks import SCORE_NAMES

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
    return {
        "reference_counts": matched.counts,
        "candidate_ids": matched.candidate.ids,
        "candidate_best": matched.candidate.best,
        "candidate_lengths": matched.candidate.lengths,
        "reference_ids": matched.reference.ids,
        "reference_best": matched.reference.best,
        "reference_lengths": matched.reference.lengths,
    }


def unpack_tokens(states: Mapping[str, Tensor], num_layers: int) -> MatchedTexts:
    """Restore matched texts from token states."""
    return MatchedTexts(
        candidate=_unpack_side(states, "candidate", num_layers),
        reference=_unpack_side(states, "reference", num_layers),
        counts=states["reference_counts"].long(),
        num_truncated=0,
    )


def _unpack_side(states: Mapping[str, Tensor], side: str, num_layers: int) -> MatchedTokens:
    return MatchedTokens(
        ids=states[f"{side}_ids"].long(),
        best=states[f"{side}_best"].reshape(-1, num_layers),
        lengths=states[f"{side}_lengths"].long(),
    )


def as_indices(indices: Sequence[int] | Tensor, num_pairs: int) -> Tensor:
    """Return the indices of pairs as a tensor, shape (pairs,), int64; an error unless they are one integer per pair."""
    if isinstance(indices, Tensor):
        numbers = indices
    else:
        numbers = torch.tensor(indices, device="cpu")
    # An empty list becomes a tensor of floats.
    are_integers = num_pairs == 0 or not (numbers.is_floating_point() or numbers.dtype == torch.bool)
    if numbers.shape != (num_pairs,) or not are_integers:
        raise ValueError(
            f"indices must be {num_pairs} integers, one per pair, got {numbers.dtype} of shape {tuple(numbers.shape)}"
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
    """Add a note to the error of a failed collective, whose message only says which connection failed."""
    try:
        yield
    except RuntimeError as error:
        error.add_note(
            "BERTScore could not gather the scores of all ranks, because another rank has ended or did not answer in "
            "time. To score the pairs of this rank alone, merge_state this metric into a BERTScore with "
            "sync_on_compute=False."
        )
        raise


@dataclass(frozen=True)
class SyncedState:
    """Combined state of all ranks: scores before rescaling, in the order of indices or, without them, rank by rank."""

    scores: Tensor  # (3, layers, pairs)
    num_truncated: int
    frequencies: DocumentFrequencies | None  # with idf


@dataclass(frozen=True)
class _Header:
    """What a rank tells the others before they exchange scores.

    ``token`` is a random number that identifies the rank: a ``dist_sync_fn`` may order ranks in another way.
    """

    token: int
    num_pairs: int
    num_indices: int
    num_truncated: int
    settings: dict[str, str]

    @classmethod
    def decode(cls, header: Tensor) -> Self:
        """Return the header in a tensor of :func:`_gather_headers`."""
        # Four numbers, and then the settings as bytes.
        token, num_pairs, num_indices, num_truncated = header[:4].tolist()
        return cls(
            token=token,
            num_pairs=num_pairs,
            num_indices=num_indices,
            num_truncated=num_truncated,
            settings=decode_settings(header[4:]),
        )


def combine_ranks(
    states: Mapping[str, Tensor],
    collectives: Collectives,
    settings: ScoreSettings,
) -> SyncedState:
    """Combine the pairs of all ranks, of which those with equal indices count once.

    Every rank issues the same collectives in the same order, with or without pairs. One number per vocabulary entry
    (with idf) and a few per pair are exchanged, never tokens.

    ``states`` are those of this rank: a tensor of all its updates for each of ``SCORE_STATES`` and, with idf, of
    ``TOKEN_STATES``; ``num_truncated``; and ``fingerprint``, the settings as :func:`encode_settings` returns them.
    ``indices`` has one entry per pair, or none if the updates had no indices.
    """
    num_layers = settings.num_layers
    idf = "reference_counts" in states
    if idf:
        # The states have the tokens of each pair, and no scores yet.
        num_own_pairs = len(states["reference_counts"])
    else:
        num_own_pairs = len(states["scores"])
    headers, rank = _gather_headers(states, collectives, num_own_pairs)
    _check_headers(headers)

    is_kept: Tensor | None = None  # (own pairs,), or None if all pairs are kept
    kept_indices: Tensor | None = None  # (kept pairs of all ranks,), or None without indices
    if any(header.num_indices > 0 for header in headers):
        num_before = sum(header.num_indices for header in headers[:rank])
        is_kept, kept_indices = _find_kept_pairs(states["indices"], num_before, collectives)

    frequencies = None
    if idf:
        matched = unpack_tokens(states, num_layers)
        frequencies = _sum_frequencies(matched, is_kept, collectives, settings.encoder.tokenizer.vocab_size)
        weighted = replace(settings, weights=weights_by_idf(frequencies, "references"))
        computed, _ = compute_scores(matched, weighted)  # (3, layers, own pairs)
        own_scores = computed.movedim(-1, 0)  # (own pairs, 3, layers)
    else:
        own_scores = states["scores"].reshape(-1, 3, num_layers)  # (own pairs, 3, layers)
    kept_scores = own_scores
    if is_kept is not None:
        kept_scores = own_scores[is_kept]  # (own kept pairs, 3, layers)

    all_scores = kept_scores
    # All ranks know the headers, so that all of them gather or none does.
    if any(header.num_pairs > 0 for header in headers):
        # Flat tensors, because ranks have different numbers of pairs.
        gathered = collectives.gather(kept_scores.flatten())  # (own kept pairs * 3 * layers,) of each rank
        all_scores = torch.cat(gathered).reshape(-1, 3, num_layers)  # (kept pairs, 3, layers)
    scores = all_scores.movedim(0, -1)  # (3, layers, kept pairs)
    if kept_indices is not None:
        scores = scores[..., kept_indices.argsort(stable=True)]
    num_truncated = sum(header.num_truncated for header in headers)
    return SyncedState(scores=scores, num_truncated=num_truncated, frequencies=frequencies)


def _find_kept_pairs(own_indices: Tensor, num_before: int, collectives: Collectives) -> tuple[Tensor, Tensor]:
    """Find the pairs to keep, the first one of each index on all ranks.

    Args:
        own_indices: one index per pair of this rank, shape (own pairs,).
        num_before: number of pairs of the ranks before this one.
        collectives: exchange with the other ranks.

    Returns:
        Whether each pair of this rank is kept, shape (own pairs,), bool; and the index of each kept pair of all ranks,
        shape (kept pairs,).
    """
    all_indices = torch.cat(collectives.gather(own_indices))  # (pairs of all ranks,)
    is_first = _find_first(all_indices)  # (pairs of all ranks,)
    is_kept = is_first[num_before : num_before + len(own_indices)]  # (own pairs,)
    return is_kept, all_indices[is_first]


def _gather_headers(
    states: Mapping[str, Tensor], collectives: Collectives, num_pairs: int
) -> tuple[list[_Header], int]:
    """Return the headers of all ranks, and the place of this rank's among them."""
    # 62 bits fit into int64. The user's seed must not make the numbers of all ranks equal, so do not ask torch.
    token = secrets.randbits(62)
    numbers = torch.tensor([token, num_pairs, len(states["indices"])], device=states["fingerprint"].device)  # (3,)
    own_header = torch.cat([numbers, states["num_truncated"][None], states["fingerprint"]])  # (4 + bytes of settings,)
    headers = [_Header.decode(header) for header in collectives.gather(own_header)]
    tokens = [header.token for header in headers]
    return headers, tokens.index(token)


def _check_headers(headers: Sequence[_Header]) -> None:
    """Raise an error if ranks differ in settings, or only some have indices."""
    first, *others = headers
    for other in others:
        # A rank with other settings would issue different collectives and deadlock.
        differences = describe_differences(other.settings, first.settings)
        if differences:
            raise ValueError(
                f"the metrics of the ranks differ in {differences}. Create them with the same arguments on every rank"
            )
    has_indices = any(header.num_indices > 0 for header in headers)
    lacks_indices = any(header.num_indices < header.num_pairs for header in headers)
    if has_indices and lacks_indices:
        raise ValueError("some ranks passed indices to update and others did not. Pass them on all ranks or on none")


def _find_first(indices: Tensor) -> Tensor:
    """Return whether each index, shape (pairs,), is the first one of its value, bool."""
    is_first = torch.zeros_like(indices, dtype=torch.bool)
    _, places = np.unique(indices.cpu().numpy(), return_index=True)
    is_first[places] = True
    return is_first


def _sum_frequencies(
    matched: MatchedTexts, is_kept: Tensor | None, collectives: Collectives, vocab_size: int
) -> DocumentFrequencies:
    """Return the document frequencies of the references of all ranks.

    ``matched`` are the pairs of this rank. Those that are not kept do not count; ``is_kept`` is ``None`` if all are.
    """
    ids = matched.reference.ids  # (tokens,)
    lengths = matched.reference.lengths  # tokens per reference, (references,)
    if is_kept is not None:
        references_per_pair = matched.counts  # (own pairs,)
        is_counted = is_kept[segment_ids(references_per_pair)]  # (references,)
        ids = ids[is_counted[segment_ids(lengths)]]  # (tokens of counted references,)
        lengths = lengths[is_counted]  # (counted references,)
    own = DocumentFrequencies.of(ids, lengths, vocab_size)
    # Documents per token id and the number of all documents travel in one tensor, because each collective takes time.
    own_numbers = torch.cat([own.counts, own.num_documents[None]])  # (vocabulary + 1,)
    numbers = collectives.sum(own_numbers)  # (vocabulary + 1,)
    return DocumentFrequencies(counts=numbers[:-1], num_documents=numbers[-1])


def summarize(scores: Tensor, baseline: Baseline | None, reduction: str) -> dict[str, Tensor]:
    """Return rescaled scores by name, shape (layers,), or (layers, pairs) with ``reduction="none"``."""
    rescaled = rescale_scores(scores, baseline)  # (3, layers, pairs)
    values = rescaled
    if reduction == "mean":
        # Compute on the CPU, because some accelerators have no float64. The mean of no pairs is 0.
        num_pairs = rescaled.shape[-1]
        values = rescaled.cpu().double().sum(-1) / max(num_pairs, 1)  # (3, layers)
    return {name: value.float() for name, value in zip(SCORE_NAMES, values, strict=True)}


def restore_dimensions(result: Any, all_layers: bool, reduction: str) -> Any:
    """Return copies of a result's tensors with the dimensions of one element, which torchmetrics squeezes.

    torchmetrics keeps the result for the next call, so that changes in place by the caller must not reach it.
    """
    if isinstance(result, dict):
        return {name: restore_dimensions(value, all_layers, reduction) for name, value in result.items()}
    if not isinstance(result, Tensor):
        return result
    num_dimensions = int(all_layers) + int(reduction == "none")
    if result.ndim == num_dimensions:
        return result.clone()
    return result.reshape((1,) * num_dimensions).clone()
