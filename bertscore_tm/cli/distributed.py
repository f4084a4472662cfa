"""The ranks of a run under ``torchrun``, which together print what one process prints.

Rank 0 reads the input and prints the result; each rank scores a part of the candidates. Ranks exchange their expected
errors, so that all end together and with the same exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from bertscore_tm.cli import print_error
from bertscore_tm.cli.errors import FAILED, CommandError, expected_errors, replace_arguments_with_options

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.corpus import CorpusScores
    from bertscore_tm.scoring.texts import TextPairs
    from bertscore_tm.scoring.token_weights import TokenWeights

__all__ = ["RankGroup", "choose_device", "join_ranks", "merge_parts", "split_steps"]

T = TypeVar("T")

# Timeout of the first connection, where a rank may never start.
_START_TIMEOUT = timedelta(minutes=10)
# Timeout for a slower rank. A rank that died is noticed at once, because its connections close.
_WORK_TIMEOUT = timedelta(days=7)
# On the CPU the planned steps are so long that the last one would keep one rank busy while the others wait.
_CHARACTERS_PER_STEP = 32_000


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a run, as seen from one of them.

    Args:
        rank: rank of this process; rank 0 reads and prints.
        size: number of ranks.
        group: process group of the ranks; ``None`` for the default group.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None = None

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Run a function on rank 0 only, such as reading a file, and return its result on all ranks.

        Args:
            work: the function.

        Returns:
            The result of rank 0.

        Raises:
            CommandError: the function failed.
        """
        result, error = _catch_expected(work) if self.rank == 0 else (None, None)
        if self.size > 1:
            shared = [(result, error)]
            _communicate(lambda dist: dist.broadcast_object_list(shared, src=0, group=self.group))
            ((result, error),) = shared
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def run_on_all(self, work: Callable[[], T]) -> T:
        """Run a function on every rank, and continue only if it succeeded on all of them.

        Args:
            work: the function.

        Returns:
            The result of this rank.

        Raises:
            CommandError: the function failed on a rank.
        """
        result, error = _catch_expected(work)
        errors = [error]
        if self.size > 1:
            errors *= self.size
            _communicate(lambda dist: dist.all_gather_object(errors, error, group=self.group))
        for failed in errors:
            if failed is not None:
                raise failed
        return result  # type: ignore[return-value]

    def score(
        self,
        texts: TextPairs,
        encoder: FrozenEncoder,
        weights: TokenWeights,
        device: torch.device,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> CorpusScores | None:
        """Score a corpus, each rank a part of the candidates.

        Args:
            texts: the corpus.
            encoder: the encoder.
            weights: the token weights.
            device: the device of this rank.
            progress: called with the number of candidates scored since the last call: on rank 0 after each of its
                steps, and at the end for the other ranks.

        Returns:
            The scores on rank 0, ``None`` on all other ranks.

        Raises:
            CommandError: a rank failed.
        """
        from bertscore_tm.scoring.corpus import plan_steps, score_corpus

        advance = progress if self.rank == 0 else None

        def work() -> CorpusScores:
            steps = plan_steps(texts, encoder, device)
            if device.type == "cpu":
                steps = _shorten_steps(steps, texts)
            own = split_steps(steps, texts, self.size)[self.rank]
            return score_corpus(texts, encoder, weights, device, steps=own, progress=advance)

        parts = self.gather(self.run_on_all(work))
        if parts is None:
            return None
        if advance is not None:
            advance(len(texts) - len(parts[0].rows))
        return _merge_scores(parts)

    def gather(self, value: T) -> list[T] | None:
        """Collect a value of every rank.

        Args:
            value: the value of this rank.

        Returns:
            The values in the order of the ranks on rank 0, ``None`` on all other ranks.

        Raises:
            CommandError: the connection to a rank was lost.
        """
        if self.size == 1:
            return [value]
        parts: list[Any] | None = [None] * self.size if self.rank == 0 else None
        _communicate(lambda dist: dist.gather_object(value, parts, dst=0, group=self.group))
        return parts


@contextmanager
def join_ranks() -> Generator[RankGroup, None, None]:
    """Join the ranks that ``torchrun`` describes in the environment; without ``torchrun``, be the only rank.

    Yields:
        The ranks.

    Raises:
        CommandError: the block failed.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield RankGroup(0, 1)
        return
    import torch.distributed as dist

    # Only small results on the CPU are exchanged, so gloo fits all devices.
    dist.init_process_group("gloo", timeout=_START_TIMEOUT)
    rank = dist.get_rank()
    try:
        yield RankGroup(rank, size, dist.new_group(timeout=_WORK_TIMEOUT))
    except CommandError as error:
        # torchrun stops all ranks when one exits with an error, so rank 0 prints before any rank exits.
        if rank == 0:
            print_error(error)
        with suppress(RuntimeError):
            dist.barrier()
        raise CommandError("", error.exit_code) from error
    finally:
        dist.destroy_process_group()


def choose_device(device: str | None) -> torch.device:
    """Return the device of this rank.

    Args:
        device: name of the device. Default: a GPU if available, a different one for each rank of a machine.

    Returns:
        The device.

    Raises:
        CommandError: the device does not exist, or the machine has fewer GPUs than ranks.
    """
    import torch

    from bertscore_tm.encoder import default_device

    try:
        chosen = default_device(device)
    except RuntimeError as error:
        raise CommandError(f"argument --device: {device!r} is not a device: {error}") from error
    if chosen.type != "cuda":
        return chosen
    available = torch.cuda.device_count()
    number = chosen.index if chosen.index is not None else int(os.environ.get("LOCAL_RANK", "0"))
    if number >= available:
        raise CommandError(
            f"cuda:{number} does not exist: this machine has {available} GPUs; start one process per GPU (torchrun "
            f"--nproc-per-node) or pass --device"
        )
    return torch.device("cuda", number)


def split_steps(steps: Sequence[list[int]], texts: TextPairs, num_ranks: int) -> list[list[list[int]]]:
    """Split steps evenly among ranks, by the number of characters.

    Args:
        steps: indices of the candidates of each step.
        texts: the corpus.
        num_ranks: number of ranks.

    Returns:
        The steps of each rank.

    Example:
        >>> from bertscore_tm.scoring.texts import TextPairs
        >>> texts = TextPairs(["a", "bb", "cccc"], [["a"], ["bb"], ["cccc"]])
        >>> split_steps([[0], [1], [2]], texts, 2)
        [[[2]], [[1], [0]]]
    """
    split: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    lengths = [sum(_count_characters(texts, i) for i in step) for step in steps]
    for number in sorted(range(len(steps)), key=lambda i: -lengths[i]):
        rank = loads.index(min(loads))
        split[rank].append(steps[number])
        loads[rank] += lengths[number]
    return split


def _shorten_steps(steps: Sequence[list[int]], texts: TextPairs) -> list[list[int]]:
    shortened: list[list[int]] = []
    for step in steps:
        current: list[int] = []
        size = 0
        for i in step:
            added = _count_characters(texts, i)
            if current and size + added > _CHARACTERS_PER_STEP:
                shortened.append(current)
                current, size = [], 0
            current.append(i)
            size += added
        shortened.append(current)
    return shortened


def _count_characters(texts: TextPairs, candidate: int) -> int:
    return len(texts.candidates[candidate]) + sum(map(len, texts.references[candidate]))


def _catch_expected(work: Callable[[], T]) -> tuple[T | None, CommandError | None]:
    """Return the function's result, or its expected error as one that can be sent to other ranks."""
    try:
        return work(), None
    except CommandError as error:
        return None, error
    except expected_errors() as error:
        return None, CommandError(replace_arguments_with_options(str(error)), FAILED)


def _communicate(collective: Callable[[Any], None]) -> None:
    import torch.distributed as dist

    try:
        collective(dist)
    except RuntimeError as error:
        raise CommandError(f"lost the connection to another process: {error}", FAILED) from error


def merge_parts(parts: Sequence[CorpusScores]) -> CorpusScores:
    """Join the scores of consecutive parts of a corpus.

    Args:
        parts: the scores of each part, whose rows count from 0.

    Returns:
        The scores of the corpus.
    """
    import torch

    from bertscore_tm.scoring.corpus import CorpusScores

    return CorpusScores(
        rows=list(range(sum(len(part.rows) for part in parts))),
        scores=torch.cat([part.scores for part in parts], dim=-1),
        best_reference=torch.cat([part.best_reference for part in parts], dim=-1),
        num_truncated=sum(part.num_truncated for part in parts),
    )


def _merge_scores(parts: Sequence[CorpusScores]) -> CorpusScores:
    if len(parts) == 1:
        return parts[0]
    import torch

    from bertscore_tm.scoring.corpus import CorpusScores

    rows = list(chain.from_iterable(part.rows for part in parts))
    order = torch.tensor(rows, dtype=torch.long, device="cpu").argsort()
    return CorpusScores(
        rows=sorted(rows),
        scores=torch.cat([part.scores for part in parts], dim=-1)[..., order],
        best_reference=torch.cat([part.best_reference for part in parts], dim=-1)[..., order],
        num_truncated=sum(part.num_truncated for part in parts),
    )
