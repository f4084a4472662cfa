"""Base class of the metric: keeps matched pairs of texts in list states and sums, and combines those of all ranks.

The only file that uses protected names of ``torchmetrics.Metric``:

* ``_apply``: states follow the device of the module that holds the metric, but not its dtype.
* ``_load_from_state_dict``: a loaded state is checked and copied into new lists.
* ``_reduce_states``: the ``Running`` wrapper merges states with it; ours keeps the order of pairs.
* ``_wrap_compute``: its wrapper squeezes results of one element and keeps them; ours restores their dimensions and
  returns copies.
* ``_forward_cache``: ``LightningModule.log`` reads the value of a step from it.
* ``_update_count``: merged and loaded pairs count as updates, or ``compute`` would warn that there were none.
* ``_computed``: a cached result is dropped when pairs are merged, loaded, synchronised or the ranks' own again.
"""

from __future__ import annotations

import functools
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from bertscore_tm.core.scores import harmonic_mean
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.metric.rank_sync import Collectives, RankState, SyncedState, combine_ranks
from bertscore_tm.metric.shared_batch import match_batch
from bertscore_tm.metric.states import (
    SCORE_STATES,
    append,
    as_indices,
    indices_fit,
    num_pairs,
    num_values,
    pack_scores,
    pack_tokens,
    sums_of_scores,
    token_dtypes,
)
from bertscore_tm.scoring.corpus import compute_weighted_scores
from bertscore_tm.scoring.texts import TextPairs
from bertscore_tm.scoring.token_weights import TokenWeights, WeightSource
from bertscore_tm.utilities.class_names import full_class_name

__all__ = ["ListStateMetric"]

_SUMS = ("totals", "num_truncated")
# First numbers of a fingerprint: the hash of the settings. Whether pairs are kept follows.
_DIGEST_SIZE = 8


class ListStateMetric(Metric):
    """Metric whose states are lists of flat tensors of fixed dtypes, sums, and a fingerprint of its settings.

    States are never changed in place: they can be shared by metrics without copies, and may have been made in inference
    mode. Synchronisation leaves them alone and keeps the combined pairs of all ranks next to them.

    Args:
        **kwargs: as for ``torchmetrics.Metric``.
    """

    encoder: FrozenEncoder
    encoding_device: torch.device | None
    cache_bytes: int
    scores: list[Tensor]
    indices: list[Tensor]
    totals: Tensor
    num_truncated: Tensor
    fingerprint: Tensor
    # Layer to pick from an encoder with all layers.
    _layer: int | None
    # None with idf over the references, which are not known yet.
    _weights: TokenWeights | None
    _keeps_pairs: bool

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean
        self._synced: SyncedState | None = None
        # States of the batch that forward adds.
        self._step: dict[str, Any] | None = None

    @abstractmethod
    def _restore_dimensions(self, result: Any) -> Any:
        """Return a copy of a result with the dimensions of one element that torchmetrics has squeezed.

        Args:
            result: result of ``compute`` without those dimensions.
        """

    @property
    def _num_layers(self) -> int:
        return 1 if self._layer is not None else self.encoder.num_outputs

    @property
    def _weight_source(self) -> WeightSource:
        return WeightSource("references") if self._weights is None else self._weights.source

    @property
    def _encoder_device(self) -> torch.device:
        return self.encoding_device or self.device

    @property
    def _state_device(self) -> torch.device:
        """Device of list states."""
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def _register_states(self) -> None:
        """Register all states, when the settings that they depend on are known."""
        self._list_dtypes = dict(SCORE_STATES)
        if self._weights is None:
            self._list_dtypes |= token_dtypes(self.encoder.tokenizer.vocab_size)
        for name in self._list_dtypes:
            self.add_state(name, default=[], dist_reduce_fx="cat")
        no_pairs = torch.zeros(3, self._num_layers, 0, dtype=torch.float32, device=self.device)
        self.add_state("totals", default=sums_of_scores(no_pairs), dist_reduce_fx="sum")
        self.add_state("num_truncated", default=torch.tensor(0, device=self.device), dist_reduce_fx="sum")
        self._register_fingerprint()

    def _register_fingerprint(self) -> None:
        # A state, since MetricCollection merges metrics whose states are equal after the first update. The token of the
        # caller's objects differs between processes, so ranks and merged states are compared without it.
        settings = f"{self.encoder.signature(self._layer)}|{self._weight_source}|{self._f1.__name__}"
        digest = hashlib.sha256(settings.encode()).digest()[:_DIGEST_SIZE]
        values = torch.tensor([*digest, self._keeps_pairs, *self.encoder.caller_token], device=self.device)
        self.add_state("fingerprint", default=values, dist_reduce_fx=None)

    def _encode(self, texts: TextPairs, indices: Tensor | None) -> dict[str, Tensor]:
        """Encode and match texts.

        Args:
            texts: candidates and references.
            indices: number of each pair in the data set, int64.

        Returns:
            The values to append, by names of states.
        """
        if not len(texts):
            return {}
        matched = match_batch(texts, self.encoder, self._encoder_device, self._layer, self.cache_bytes)
        added = {"num_truncated": torch.tensor(matched.num_truncated, device="cpu")}
        if indices is not None:
            added["indices"] = indices
        if self._weights is None:
            return added | pack_tokens(matched, self.encoder.tokenizer.vocab_size)
        scores = compute_weighted_scores(matched, self._weights, self.encoder, self._f1)[0]
        if self._keeps_pairs or indices is not None:
            return added | {"scores": pack_scores(scores)}
        return added | {"totals": sums_of_scores(scores)}

    def _check_indices(self, indices: Sequence[int] | Tensor | None, num_new: int) -> Tensor | None:
        """Return the indices of new pairs as a tensor.

        Raises:
            ValueError: they are not one integer per pair, or updates differ in having indices.
        """
        has_indices = num_values(self.indices) > 0
        # The number of pairs last, as it may be on an accelerator.
        if num_new and has_indices != (indices is not None) and num_pairs(self.metric_state, self._num_layers):
            raise ValueError("indices must be passed to every update or to none")
        return None if indices is None else as_indices(indices, num_new)

    def _check_states(self, states: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` unless this metric can take over states, as in ``metric_state``."""
        fingerprint = states.get("fingerprint")
        settings = slice(_DIGEST_SIZE)
        if fingerprint is None or not torch.equal(fingerprint[settings].to(self.device), self.fingerprint[settings]):
            raise ValueError(
                "the state belongs to a metric that differs in model, layer, precision, length limit or idf: create "
                "both metrics with the same arguments"
            )
        missing = [name for name in self.metric_state if states.get(name) is None]
        if missing:
            raise ValueError(f"the state has no {', '.join(missing)}: pass the whole metric_state")
        if self._keeps_pairs and states["totals"][0]:
            raise ValueError(
                "the other metric kept sums only, but this metric needs every pair: create the other metric with "
                "reduction='none'"
            )

    def _combine(self, states: Mapping[str, Any], collectives: Collectives) -> SyncedState:
        """Combine states, as in ``metric_state``, with those of the other ranks."""
        settings = self.fingerprint[: _DIGEST_SIZE + 1]
        state = RankState(self._concatenate(states), states["totals"], states["num_truncated"], settings)
        vocab_size = self.encoder.tokenizer.vocab_size
        return combine_ranks(state, self._num_layers, vocab_size, self._weights is None, collectives, self._f1)

    def _concatenate(self, states: Mapping[str, Any]) -> dict[str, Tensor]:
        """Concatenate list states.

        Args:
            states: as in ``metric_state``.

        Returns:
            One tensor per list state, shape (values,); empty and of the same dtype where there are no values.
        """
        device = self._state_device
        return {
            name: torch.cat([torch.empty(0, dtype=dtype, device=device), *(part.to(device) for part in states[name])])
            for name, dtype in self._list_dtypes.items()
        }

    def _empty_states(self) -> dict[str, Any]:
        """Return the list states and sums of a metric without pairs."""
        return {name: [] for name in self._list_dtypes} | {
            name: torch.zeros_like(getattr(self, name)) for name in _SUMS
        }

    def _append_to(self, states: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
        """Append values to states without changing any tensor or list.

        Args:
            states: as in ``metric_state``.
            added: by names of states, a tensor of any shape or a list of such tensors; other names are ignored.

        Returns:
            The new states of the names in ``added``.
        """
        joined: dict[str, Any] = {}
        for name, values in added.items():
            if name in self._list_dtypes:
                joined[name] = list(states[name])
                for part in [values] if isinstance(values, Tensor) else values:
                    flat = part.detach().flatten().to(device=self._state_device, dtype=self._list_dtypes[name])
                    joined[name] = append(joined[name], flat)
            elif name in _SUMS:
                joined[name] = states[name] + values.to(self.device)
        return joined

    def _add(self, added: Mapping[str, Any], num_updates: int = 0) -> None:
        """Append values to the states of this metric: to all of them or, on an error, to none.

        Args:
            added: as for :meth:`_append_to`.
            num_updates: number of updates to count, where torchmetrics has not counted them.
        """
        # One call, which no KeyboardInterrupt can divide.
        self.__dict__.update(
            self._append_to(self.metric_state, added),
            _update_count=self._update_count + num_updates,
            _computed=None,
        )
        if self._step is not None:
            self._step |= self._append_to(self._step, added)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Append the pairs of another metric, or of its ``metric_state``, to those of this metric.

        Args:
            incoming_state: a metric with the same settings, or its state.

        Raises:
            ValueError: the other metric is not a BERTScore, encodes or weights differently, keeps only sums where this
                metric needs pairs, or one of them has indices and the other does not.
        """
        if not isinstance(incoming_state, ListStateMetric | dict):
            raise ValueError(
                f"incoming_state must be a bertscore_tm.BERTScore or its metric_state, got a "
                f"{full_class_name(incoming_state)}"
            )
        states = incoming_state if isinstance(incoming_state, dict) else {**incoming_state.metric_state}
        self._check_states(states)
        both: tuple[dict[str, Any], ...] = ({**self.metric_state}, states)
        sizes = [(num_pairs(one, self._num_layers), num_values(one["indices"])) for one in both]
        if not indices_fit(torch.tensor(sizes, device="cpu")):
            raise ValueError("one metric got indices and the other did not: pass them to both or to none")
        self._add(states, incoming_state.update_count if isinstance(incoming_state, Metric) else 1)

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        self._add(incoming_state)

    def _keep_step_value(self, value: Any) -> None:
        """Keep the value of a step for ``LightningModule.log``."""
        self._forward_cache = value

    def reset(self) -> None:
        """Start again from empty states."""
        # One call, which no KeyboardInterrupt can divide. New lists, since torchmetrics would clear in place those that
        # the Running wrapper may still hold.
        self.__dict__.update(self._empty_states(), _update_count=0, _computed=None, _synced=None)
        super().reset()

    def _collectives(self, dist_sync_fn: Callable[..., Any] | None = None, process_group: Any = None) -> Collectives:
        """Return how to exchange tensors with the other ranks.

        Args:
            dist_sync_fn: gathers a tensor of each rank. Default: the metric's, else that of torchmetrics.
            process_group: Default: the metric's.
        """
        gather = dist_sync_fn or self.dist_sync_fn or gather_all_tensors
        return Collectives(self.device, gather, process_group or self.process_group)

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Combine the pairs of all ranks, as ``compute`` does by itself with ``sync_on_compute=True``, the default.

        With ``sync_on_compute=False``, the next ``compute`` returns the scores of all ranks and calls ``unsync``. With
        ``sync_on_compute=True``, it would synchronise twice and raises an error, unless its result is cached.

        Args:
            dist_sync_fn: gathers a tensor of each rank.
            process_group: the ranks that take part.
            should_sync: ``False`` does nothing.
            distributed_available: whether there are several ranks.

        Raises:
            TorchMetricsUserError: the metric is already synchronised.
        """
        if not should_sync:
            return
        if self._synced is not None:
            raise TorchMetricsUserError("The Metric has already been synced: call unsync first")
        if (distributed_available or self.distributed_available_fn)():
            combined = self._combine(self.metric_state, self._collectives(dist_sync_fn, process_group))
            # A cached result is that of all ranks, unless compute does not synchronise.
            self.__dict__.update(_synced=combined, _computed=self._computed if self.sync_on_compute else None)

    def unsync(self, should_unsync: bool = True) -> None:
        """Return to the pairs of this rank.

        Args:
            should_unsync: ``False`` does nothing.

        Raises:
            TorchMetricsUserError: the metric is not synchronised.
        """
        if not should_unsync:
            return
        if self._synced is None:
            raise TorchMetricsUserError("The Metric has already been un-synced.")
        self.__dict__.update(_synced=None, _computed=None)

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> Generator[None, None, None]:
        """Synchronise within a ``with`` block, and return to the pairs of this rank, also when the block raises.

        Args:
            dist_sync_fn: as for :meth:`sync`.
            process_group: as for :meth:`sync`.
            should_sync: as for :meth:`sync`.
            should_unsync: whether to return to the pairs of this rank.
            distributed_available: as for :meth:`sync`.
        """
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            if should_unsync:
                self.__dict__.update(_synced=None, _computed=None)

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = super()._wrap_compute(compute)

        @functools.wraps(compute)
        def compute_with_dimensions(*args: Any, **kwargs: Any) -> Any:
            return self._restore_dimensions(wrapped(*args, **kwargs))

        return compute_with_dimensions

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            # A lower precision, as of bf16-true, would round scores and sums.
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        # Lists that compute_on_cpu keeps on the CPU stay there: parts on two devices could not be joined.
        on_cpu = tuple(self._list_dtypes) if self.compute_on_cpu else ()
        super()._apply(keep_dtype, (*exclude_state, *on_cpu))
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        own = self.fingerprint
        if f"{prefix}fingerprint" in state_dict:
            self._check_states({name: state_dict.get(prefix + name) for name in self.metric_state})
        super()._load_from_state_dict(state_dict, prefix, *args)
        loaded = self.metric_state
        # That of a metric which keeps pairs differs from that of a metric which keeps sums.
        self.fingerprint = own
        self.__dict__.update(self._append_to(self._empty_states(), loaded))
        self._computed = None
        if num_pairs(loaded, self._num_layers):
            self._update_count = max(self._update_count, 1)
