"""Bytes exchanged by ranks in one ``compute``, by number of pairs and tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from examples.benchmarks.encoders import MadeUpEncoder
from examples.benchmarks.metric.feeding import feed, make_metric
from examples.benchmarks.processes import run_ranks
from examples.benchmarks.tables import Record

__all__ = ["COLUMNS", "Wire", "counted_collectives", "traffic_of_compute"]

_BATCH_SIZE = 500
# Collectives that are not counted raise an error.
_OTHERS = (
    *("all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce_coalesced", "all_to_all"),
    *("all_to_all_single", "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather", "gather_object"),
    *("irecv", "isend", "monitored_barrier", "recv", "recv_object_list", "reduce", "reduce_scatter"),
    *("reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "send_object_list"),
)

COLUMNS = {
    "kind": "",
    "indices": "",
    "pairs": ",",
    "tokens": ",",
    "calls": "",
    "sent": ",",
    "received": ",",
    "vocabulary": ",",
    "sent_per_pair": ".2f",
    "sent_otherwise": ",.0f",
}


@dataclass
class Wire:
    """Traffic between a rank and the others.

    Args:
        calls: number of collective calls, barriers included.
        sent: bytes of tensors sent.
        received: bytes of tensors received.
        added: bytes of the sent tensors that were summed over ranks.
    """

    calls: int = 0
    sent: int = 0
    received: int = 0
    added: int = 0


def traffic_of_compute(
    kind: str, indices: bool, sizes: Sequence[int], tokens: tuple[int, int] = (20, 60), world_size: int = 2
) -> list[Record]:
    """Count the bytes of one ``compute`` over gloo ranks that share generated pairs evenly.

    Args:
        kind: one of ``feeding.KINDS``.
        indices: pass an index with each pair.
        sizes: two or more numbers of pairs of all ranks together, ascending.
        tokens: smallest and largest number of tokens per text.
        world_size: number of processes.

    Returns:
        A record for each number of pairs: the arguments; the ``tokens`` of the pairs; for the rank that sends most, its
        ``calls`` of collectives, the bytes ``sent`` and ``received``, and the part of ``sent`` with one number per
        vocabulary entry; and, from the smallest and the largest size, the bytes that all ranks send per pair, and the
        bytes that a rank sends independent of the number of pairs.
    """
    by_rank = run_ranks(_compute, world_size, kind, indices, sizes, tokens, world_size)
    totals = [sum(of_rank[size][0].sent for of_rank in by_rank) for size in sizes]
    per_pair = (totals[-1] - totals[0]) / (sizes[-1] - sizes[0])
    records: list[Record] = []
    for size in sizes:
        most = max((of_rank[size][0] for of_rank in by_rank), key=lambda wire: wire.sent)
        records.append(
            {
                "kind": kind,
                "indices": indices,
                "pairs": size,
                "tokens": sum(of_rank[size][1] for of_rank in by_rank),
                "calls": most.calls,
                "sent": most.sent,
                "received": most.received,
                "vocabulary": most.added,
                "sent_per_pair": per_pair,
                "sent_otherwise": (totals[0] - per_pair * sizes[0]) / world_size,
            }
        )
    return records


@contextmanager
def counted_collectives() -> Generator[Wire, None, None]:
    """Count the traffic of this process through ``torch.distributed`` in a ``with`` block.

    Yields:
        The counts, updated by each call.

    Raises:
        RuntimeError: a collective was called in the block whose bytes cannot be counted.
    """
    wire = Wire()
    originals = {name: getattr(dist, name) for name in (*_OTHERS, "all_gather", "all_reduce", "barrier")}

    def all_gather(tensor_list: list[Tensor], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        wire.calls += 1
        wire.sent += tensor.nbytes
        wire.received += sum(one.nbytes for one in tensor_list) - tensor.nbytes
        return originals["all_gather"](tensor_list, tensor, *args, **kwargs)

    def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        wire.calls += 1
        wire.sent += tensor.nbytes
        wire.received += tensor.nbytes
        wire.added += tensor.nbytes
        return originals["all_reduce"](tensor, *args, **kwargs)

    def barrier(*args: Any, **kwargs: Any) -> Any:
        wire.calls += 1
        return originals["barrier"](*args, **kwargs)

    replaced = {name: _refuse(name) for name in _OTHERS}
    replaced |= {"all_gather": all_gather, "all_reduce": all_reduce, "barrier": barrier}
    try:
        for name, function in replaced.items():
            setattr(dist, name, function)
        yield wire
    finally:
        for name, function in originals.items():
            setattr(dist, name, function)


def _compute(
    rank: int, kind: str, indices: bool, sizes: Sequence[int], tokens: tuple[int, int], world_size: int
) -> dict[int, tuple[Wire, int]]:
    found = {}
    for size in sizes:
        encoder = MadeUpEncoder(tokens, seed=rank)
        metric = make_metric(kind, encoder)
        feed(metric, range(rank, size, world_size), _BATCH_SIZE, indices)
        with counted_collectives() as wire:
            metric.compute()
        found[size] = wire, encoder.counts.tokens
    return found


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"torch.distributed.{name} was called, but its bytes are not counted: add it to counted_collectives"
        )

    return refuse
