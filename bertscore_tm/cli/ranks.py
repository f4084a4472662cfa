"""Several processes, as ``torchrun`` starts them, that give the output of one.

The first process reads the input and prints the result; each scores its own share. Everything that can fail in an
expected way is agreed upon, so that all processes end together and with the same exit code.
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
from bertscore_tm.cli.errors import FAILED, CommandError, expected_errors, in_options

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from bertscore_tm.encoder import FrozenEncoder
    from bertscore_tm.scoring.corpus import CorpusScores
    from bertscore_tm.scoring.token_weights import TokenWeights
    from bertscore_tm.texts import TextPairs

__all__ = ["Team", "choose_device", "join", "shares"]

T = TypeVar("T")

# How long processes wait for each other at the start, where one may never come.
_START = timedelta(minutes=10)
# How long they wait for a slower one. That one has died is noticed at once, since its connections close.
_WORK = timedelta(days=7)
# Without a GPU a step is so long that the last one would keep one process busy and the others waiting.
_CHARACTERS_PER_PIECE = 32_000


@dataclass(frozen=True)
class Team:
    """The processes of a run, seen from one of them.

    Args:
        rank: number of this process; the first, 0, reads and prints.
        size: how many there are.
        group: their process group, ``None`` for the default one.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None = None

    def from_first(self, work: Callable[[], T]) -> T:
        """Do something in the first process, such as reading a file, and tell all others what came of it.

        Args:
            work: what to do.

        Returns:
            What the first process returned.

        Raises:
            CommandError: it failed there.
        """
        result, error = _attempt(work) if self.rank == 0 else (None, None)
        if self.size > 1:
            shared = [(result, error)]
            _collective(lambda dist: dist.broadcast_object_list(shared, src=0, group=self.group))
            ((result, error),) = shared
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def together(self, work: Callable[[], T]) -> T:
        """Do something in every process, and go on only if all of them could.

        Args:
            work: what to do.

        Returns:
            What this process returned.

        Raises:
            CommandError: it failed in one of them.
        """
        result, error = _attempt(work)
        errors = [error]
        if self.size > 1:
            errors *= self.size
            _collective(lambda dist: dist.all_gather_object(errors, error, group=self.group))
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
        progress: bool = False,
    ) -> CorpusScores | None:
        """Score a corpus, each process its share of the candidates.

        Args:
            texts: the corpus.
            encoder: the encoder.
            weights: weight of every token.
            device: where this process computes.
            progress: show a progress bar in the first process, on its own share.

        Returns:
            The scores in the first process, ``None`` in all others.

        Raises:
            CommandError: a process failed.
        """
        from bertscore_tm.scoring.corpus import plan_steps, score_corpus
        from bertscore_tm.scoring.messages import progress_bar

        def work() -> CorpusScores:
            steps = plan_steps(texts, encoder, device)
            if device.type == "cpu":
                steps = _pieces(steps, texts)
            mine = shares(steps, texts, self.size)[self.rank]
            with progress_bar(sum(map(len, mine)), progress and self.rank == 0) as advance:
                return score_corpus(texts, encoder, weights, device, steps=mine, progress=advance)

        scored = self.together(work)
        if self.size == 1:
            return scored
        parts: list[Any] | None = [None] * self.size if self.rank == 0 else None
        _collective(lambda dist: dist.gather_object(scored, parts, dst=0, group=self.group))
        return None if parts is None else _joined(parts)


@contextmanager
def join() -> Generator[Team, None, None]:
    """Take part in the run that ``torchrun`` describes in the environment; without it, be the only process.

    Yields:
        The processes.

    Raises:
        CommandError: what was done inside failed.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team(0, 1)
        return
    import torch.distributed as dist

    # Only small results on the CPU travel, so that one backend serves all devices.
    dist.init_process_group("gloo", timeout=_START)
    rank = dist.get_rank()
    try:
        yield Team(rank, size, dist.new_group(timeout=_WORK))
    except CommandError as error:
        # torchrun ends all processes when one has ended with an error, so the first one speaks before any ends.
        if rank == 0:
            print_error(error)
        with suppress(RuntimeError):
            dist.barrier()
        raise CommandError("", error.exit_code) from error
    finally:
        dist.destroy_process_group()


def choose_device(device: str | None) -> torch.device:
    """Return where this process computes.

    Args:
        device: where to compute. Default: a GPU where there is one, of several processes on a machine each its own.

    Returns:
        The device.

    Raises:
        CommandError: there is no such device, or there are fewer GPUs than processes.
    """
    import torch

    from bertscore_tm.encoder import default_device

    try:
        chosen = default_device(device)
    except RuntimeError as error:
        raise CommandError(f"argument --device: {device!r} is no device: {error}") from error
    if chosen.type != "cuda":
        return chosen
    available = torch.cuda.device_count()
    number = chosen.index if chosen.index is not None else int(os.environ.get("LOCAL_RANK", "0"))
    if number >= available:
        raise CommandError(
            f"cuda:{number} is not there, this machine has {available} GPUs: start one process per GPU (torchrun "
            f"--nproc-per-node), or choose with --device"
        )
    return torch.device("cuda", number)


def shares(steps: Sequence[list[int]], texts: TextPairs, size: int) -> list[list[list[int]]]:
    """Share out steps evenly, by the length of their texts.

    Args:
        steps: numbers of the candidates of each step.
        texts: the corpus.
        size: among how many.

    Returns:
        The steps of each process.

    Example:
        >>> from bertscore_tm.texts import TextPairs
        >>> texts = TextPairs(["a", "bb", "cccc"], [["a"], ["bb"], ["cccc"]])
        >>> shares([[0], [1], [2]], texts, 2)
        [[[2]], [[1], [0]]]
    """
    given: list[list[list[int]]] = [[] for _ in range(size)]
    loads = [0] * size
    lengths = [sum(_characters(texts, i) for i in step) for step in steps]
    for number in sorted(range(len(steps)), key=lambda i: -lengths[i]):
        rank = loads.index(min(loads))
        given[rank].append(steps[number])
        loads[rank] += lengths[number]
    return given


def _pieces(steps: Sequence[list[int]], texts: TextPairs) -> list[list[int]]:
    pieces: list[list[int]] = []
    for step in steps:
        piece: list[int] = []
        size = 0
        for i in step:
            added = _characters(texts, i)
            if piece and size + added > _CHARACTERS_PER_PIECE:
                pieces.append(piece)
                piece, size = [], 0
            piece.append(i)
            size += added
        pieces.append(piece)
    return pieces


def _characters(texts: TextPairs, candidate: int) -> int:
    return len(texts.candidates[candidate]) + sum(map(len, texts.references[candidate]))


def _attempt(work: Callable[[], T]) -> tuple[T | None, CommandError | None]:
    """Do something; its expected errors become results that can be told to others."""
    try:
        return work(), None
    except CommandError as error:
        return None, error
    except expected_errors() as error:
        return None, CommandError(in_options(str(error)), FAILED)


def _collective(exchange: Callable[[Any], None]) -> None:
    import torch.distributed as dist

    try:
        exchange(dist)
    except RuntimeError as error:
        raise CommandError(f"the connection to another process broke: {error}", FAILED) from error


def _joined(parts: Sequence[CorpusScores]) -> CorpusScores:
    import torch

    from bertscore_tm.scoring.corpus import CorpusScores

    rows = list(chain.from_iterable(part.rows for part in parts))
    order = torch.tensor(rows, dtype=torch.long).argsort()
    return CorpusScores(
        rows=sorted(rows),
        scores=torch.cat([part.scores for part in parts], dim=-1)[..., order],
        best_reference=torch.cat([part.best_reference for part in parts], dim=-1)[..., order],
        num_truncated=sum(part.num_truncated for part in parts),
    )
