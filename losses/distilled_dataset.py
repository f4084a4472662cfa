"""A data set whose targets are replaced by chosen candidates."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["DistilledDataset", "require_length"]

_LONGEST_PATH = 4096


class DistilledDataset(Dataset[Any]):
    """A data set whose targets are replaced by their best candidates with some probability.

    Which examples are replaced depends on the seed, the epoch and the example only, so it is the same in every worker
    and after a resumed run. Call :meth:`set_epoch` in each epoch for another draw, and :meth:`read_targets` for other
    targets; both reach workers that are running. :class:`bertscore_tm.callbacks.BestOfNDistillation` calls both.

    Args:
        dataset: examples with ``len`` and indices, in the order of the targets.
        targets: a text per example, or ``None`` where it keeps its target. Default: all keep theirs.
        replace: returns the example with another target, from the example and a text: a copy, tokenized as your
            examples are. Default: a copy of the mapping with the text under ``target_key``, for targets that are texts.
        target_key: key of the target.
        probability: probability with which a target is replaced: 1 with several references per example, 0.5 with one,
            so that the reference stays in training.
        seed: seed of the draws.

    Raises:
        ValueError: lengths differ, or the probability is not between 0 and 1.
        TypeError: the data set has no length, or the examples are not mappings with a text and there is no ``replace``.

    Example:
        >>> data = [{"text": "a", "summary": "b"}, {"text": "c", "summary": "d"}]
        >>> distilled = DistilledDataset(data, ["best", None], target_key="summary", probability=1.0)
        >>> [example["summary"] for example in distilled]
        ['best', 'd']
    """

    def __init__(
        self,
        dataset: Any,
        targets: Sequence[str | None] | None = None,
        replace: Callable[[Any, str], Any] | None = None,
        *,
        target_key: str = "labels",
        probability: float = 0.5,
        seed: int = 0,
    ) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must be between 0 and 1, got {probability}")
        require_length(dataset)
        self.dataset = dataset
        self.targets = self._check([None] * len(dataset) if targets is None else list(targets))
        self.replace = replace
        self.target_key = target_key
        self.probability = probability
        self.seed = seed
        # In shared memory, so that workers that live through several epochs see it.
        self._epoch = _share(torch.zeros((), dtype=torch.long, device="cpu"))
        self._num_reads = _share(torch.zeros((), dtype=torch.long, device="cpu"))
        self._path = _share(torch.zeros(_LONGEST_PATH, dtype=torch.uint8, device="cpu"))
        self._own_num_reads = 0
        if replace is None and probability and len(dataset):
            # Now rather than after candidates have been sampled for hours.
            self._replace_target(dataset[0], "")

    def set_epoch(self, epoch: int) -> None:
        """Draw anew which targets are replaced.

        Args:
            epoch: number of the epoch.
        """
        self._epoch.fill_(epoch)

    def read_targets(self, path: str | os.PathLike[str]) -> None:
        """Replace the targets by those of a file; call it between epochs.

        Workers of a data loader that are running read the file at their next example.

        Args:
            path: file that :meth:`DistilledTargets.write` wrote; it must stay until training ends.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file does not have one line per example.
        """
        absolute = os.fsencode(Path(path).resolve())
        self.targets = self._check(_read_targets(absolute))
        self._path.zero_()
        self._path[: len(absolute)] = torch.tensor(list(absolute), dtype=torch.uint8, device="cpu")
        self._num_reads.add_(1)
        self._own_num_reads = int(self._num_reads)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Any:
        if int(self._num_reads) != self._own_num_reads:
            # Another process has called read_targets.
            self._own_num_reads = int(self._num_reads)
            self.targets = self._check(_read_targets(bytes(self._path.tolist()).rstrip(b"\0")))
        example, target = self.dataset[index], self.targets[index]
        drawn = random.Random(f"{self.seed} {int(self._epoch)} {index % len(self)}").random()
        return example if target is None or drawn >= self.probability else self._replace_target(example, target)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _replace_target(self, example: Any, target: str) -> Any:
        if self.replace is not None:
            return self.replace(example, target)
        if not isinstance(example, Mapping):
            raise TypeError(f"the examples are not mappings but {type(example).__name__}: pass replace=")
        if self.target_key not in example:
            raise ValueError(
                f"the examples have no {self.target_key!r} to replace, but {sorted(example)}: pass another "
                f"target_key=, or replace="
            )
        if not isinstance(example[self.target_key], str):
            raise TypeError(
                f"{self.target_key!r} of the examples is not a text but {type(example[self.target_key]).__name__}: "
                f"pass another target_key=, or replace= with a function that tokenizes the text"
            )
        return {**example, self.target_key: target}

    def _check(self, targets: list[str | None]) -> list[str | None]:
        count = len(self.dataset)
        if len(targets) != count:
            raise ValueError(f"targets must have one entry per example, got {len(targets)} for {count} examples")
        return targets


def require_length(dataset: Any) -> None:
    """Raise an error for a data set that can only be iterated, whose examples have no fixed place.

    Args:
        dataset: the data set.

    Raises:
        TypeError: it has no length.

    Example:
        >>> require_length(["a cat"])
    """
    if not isinstance(dataset, Sized):
        raise TypeError(
            f"dataset is a {type(dataset).__name__} without a length: candidates belong to examples by their index, so "
            f"pass a map-style data set, such as list(dataset)"
        )


def _share(tensor: Tensor) -> Tensor:
    shared: Tensor = tensor.share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _read_targets(path: bytes) -> list[str | None]:
    with Path(os.fsdecode(path)).open(encoding="utf-8") as file:
        return [json.loads(line)["target"] for line in file]
