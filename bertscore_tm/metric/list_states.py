"""What a torchmetrics metric with list states needs beyond its base class: few tensors, fixed dtypes, cheap steps.

The base class casts states with their owner, clones lists at every synchronisation and step, and leaves a metric
synchronised when ``compute`` fails.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from bertscore_tm.metric.states import append

__all__ = ["AccumulatingMetric"]


class AccumulatingMetric(Metric):
    """A metric whose states are lists of flat tensors of fixed dtypes, and tensors that add up.

    No state is ever changed in place, so that states can be put aside and shared without copies, and may have been made
    in inference mode.
    """

    _list_states: Mapping[str, torch.dtype]
    _forward_cache: Any

    def _add_list_states(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """Register states that hold values of every pair or token.

        Args:
            dtypes: their names and dtypes.
        """
        self._list_states = dict(dtypes)
        for name in dtypes:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def _values_of(self, name: str) -> Tensor:
        """Return all values of a list state, shape (values,); empty and of the same dtype where there are none."""
        empty = torch.empty(0, dtype=self._list_states[name], device=self._keeps_on)
        return torch.cat([empty, *(part.to(self._keeps_on) for part in getattr(self, name))])

    def _joined(self, states: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
        """Return states with further values behind them, without changing any.

        Args:
            states: as in ``metric_state``.
            added: by the names of states, values of any shape, or several such tensors.

        Returns:
            The new states, for the names in ``added``.
        """
        joined: dict[str, Any] = {}
        for name, values in added.items():
            if name in self._list_states:
                # A list of its own, as metrics of one compute group share theirs.
                joined[name] = states[name]
                for part in [values] if isinstance(values, Tensor) else values:
                    flat = part.detach().flatten().to(device=self._keeps_on, dtype=self._list_states[name])
                    joined[name] = append(joined[name], flat)
            elif self._reductions[name] is not None:
                joined[name] = states[name] + values.to(self.device)
        return joined

    def _add_states(self, states: Mapping[str, Any]) -> None:
        """Put the states of another metric behind those of this one: all of them or, on an error, none.

        Args:
            states: as in ``metric_state``.
        """
        self.__dict__.update(self._joined(self.metric_state, {name: states[name] for name in self._reductions}))

    def reset(self) -> None:
        """Start again from empty states."""
        # torchmetrics empties lists in place, which others, such as its Running wrapper, may still hold.
        for name in self._list_states:
            setattr(self, name, [])
        super().reset()

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        """Put other states behind these; torchmetrics' Running wrapper calls it."""
        self._add_states(incoming_state)

    @contextmanager
    def _step(self) -> Generator[None, None, None]:
        """Work on empty states in a ``with`` block, and put what came in behind the earlier states at its end.

        ``compute`` in the block gives the block's own scores, of this rank, or of all with ``dist_sync_on_step``.
        """
        before: dict[str, Any] = {**self.metric_state}
        for name in before:
            setattr(self, name, [] if name in self._list_states else self._default(name))
        try:
            # `_should_unsync` off is how torchmetrics tells the value of a step from that of an epoch.
            self._to_sync, self._should_unsync = self.dist_sync_on_step, False
            yield
        finally:
            # A step that was synchronised has put its own states aside.
            added: dict[str, Any] = {**(self._cache if self._is_synced and self._cache else self.metric_state)}
            for name, state in before.items():
                setattr(self, name, state)
            self._add_states(added)
            self._to_sync, self._should_unsync = self.sync_on_compute, True
            self._is_synced, self._cache, self._computed = False, None, None

    def _default(self, name: str) -> Tensor:
        """Return what a state that is a tensor starts from."""
        default = self._defaults[name]
        assert isinstance(default, Tensor)
        return default.to(self.device)

    @contextmanager
    def sync_context(self, *args: Any, should_unsync: bool = True, **kwargs: Any) -> Generator[None, None, None]:
        """Synchronise within a ``with`` block; the rank's own state comes back even when the block raises.

        Args:
            *args: as for ``torchmetrics.Metric.sync``.
            should_unsync: whether to bring back the rank's own state.
            **kwargs: as for ``torchmetrics.Metric.sync``.
        """
        self.sync(*args, **kwargs)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    @property
    def _keeps_on(self) -> torch.device:
        return torch.device("cpu") if self.compute_on_cpu else self.device

    def _copy_state_dict(self) -> dict[str, Any]:
        """What comes back after a synchronisation."""
        return {name: getattr(self, name) for name in self._defaults}

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """Follow the owner's device but never its dtype, which would round scores and sums (bf16-true)."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(keep_dtype, exclude_state)
        return self
