"""Small batches that wait for each other, to be encoded together: sorted by length, with little padding.

Nobody who reads a state can tell, since what waits is encoded before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from bertscore_tm.core.memory import return_freed_memory
from bertscore_tm.encoder import FrozenEncoder
from bertscore_tm.metric.list_states import AccumulatingMetric
from bertscore_tm.metric.shared_batch import Waiting, expect_batch
from bertscore_tm.texts import TextPairs

__all__ = ["WaitingMetric"]

# How many characters are encoded together, for one layer: of English, about four times as many as tokens. More leave no
# less padding between texts of similar length.
_CHARACTERS = {"cpu": 65_536}
_CHARACTERS_ON_ACCELERATORS = 131_072


class _State:
    """A state that is complete whenever it is read: what waits is encoded before."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, metric: WaitingMetric | None, owner: type[WaitingMetric]) -> Any:
        if metric is None:
            return self
        if self.name not in metric.__dict__:
            raise AttributeError(f"this {owner.__name__} has no state {self.name!r}")
        try:
            metric._encode_waiting()
        except AttributeError as error:
            # It would have torch look for the state elsewhere, and say that there is none.
            raise RuntimeError(f"the texts that waited could not be encoded: {error}") from error
        return metric.__dict__[self.name]

    def __set__(self, metric: WaitingMetric, value: Any) -> None:
        # What waits belongs to the state that is replaced.
        metric._encode_waiting()
        metric.__dict__[self.name] = value


class WaitingMetric(AccumulatingMetric):
    """A metric that encodes the texts of several small updates together, at the latest when a state is read.

    Args of the class:
        states: names of the states that texts add to.
    """

    encoder: FrozenEncoder
    _layer: int | None
    # Always replaced together with the states, so that no interruption loses or doubles a pair.
    _waiting = Waiting()

    def __init_subclass__(cls, states: Sequence[str] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in states:
            setattr(cls, name, _State(name))

    @property
    @abstractmethod
    def _encodes_on(self) -> torch.device:
        """Where to encode."""

    @abstractmethod
    def _additions(self, waiting: Waiting) -> dict[str, Tensor]:
        """Encode texts, unless another metric has done so.

        Args:
            waiting: the texts.

        Returns:
            What they add to states, by their names, except the indices.
        """

    def _put(self, texts: TextPairs, indices: Tensor | None) -> None:
        """Let texts wait, or encode them with all that wait already; on an error these texts are left out.

        Args:
            texts: candidates and references.
            indices: numbers of the pairs in the data set.
        """
        if self._waiting.matched is not None:
            self._encode_waiting()
        indices = None if indices is None else indices.to(self._keeps_on)
        waiting = self._waiting.followed_by(texts, indices, self._layer)
        limit = self._limit
        # The value of a step is computed at once.
        if waiting.num_characters < limit and self._should_unsync:
            expect_batch(waiting, self.encoder, self._encodes_on)
            if waiting.matched is None:
                self._waiting = waiting
                return
        self._add_waiting(waiting)

    def _encode_waiting(self) -> None:
        """Encode what waits; on an error it goes on waiting."""
        if len(self._waiting.texts):
            self._add_waiting(self._waiting)

    def _add_waiting(self, waiting: Waiting) -> None:
        added = self._additions(waiting)
        if waiting.indices:
            added["indices"] = torch.cat(waiting.indices)
        self.__dict__.update(self._joined(self.__dict__, added), _waiting=Waiting())
        if waiting.num_characters >= self._limit:
            return_freed_memory()

    @property
    def _limit(self) -> int:
        """How many characters are encoded together."""
        return _CHARACTERS.get(self._encodes_on.type, _CHARACTERS_ON_ACCELERATORS) // self.encoder.num_outputs

    def reset(self) -> None:
        """Start again from empty states, without encoding what waits."""
        self._waiting = Waiting()
        super().reset()

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """Encode before the device changes, and only then: Lightning calls this at every step of a logged metric."""
        if fn(torch.empty(0, device=self.device)).device != self.device:
            self._encode_waiting()
        waiting, self._waiting = self._waiting, Waiting()
        try:
            return super()._apply(fn, exclude_state)
        finally:
            self._waiting = waiting

    def _move_list_states_to_cpu(self) -> None:
        """Move list states as they are: torchmetrics calls this after every update with ``compute_on_cpu``."""
        for name in self._list_states:
            self.__dict__[name] = [part.to("cpu") for part in self.__dict__[name]]

    def __getstate__(self) -> dict[str, Any]:
        self._encode_waiting()
        return super().__getstate__()

    def __hash__(self) -> int:
        # That of torchmetrics depends on the states, and torch asks for it whenever it looks for modules.
        return hash((type(self).__name__, id(self)))
