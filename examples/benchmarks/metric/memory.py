"""Memory of the metric state per pair and per token, in its tensors and in the process."""

from __future__ import annotations

from torch import Tensor

from bertscore_tm import BERTScore
from bertscore_tm.core.memory import return_freed_memory
from examples.benchmarks.encoders import MadeUpEncoder
from examples.benchmarks.metric.feeding import feed, make_metric
from examples.benchmarks.processes import resident_bytes, run_fresh
from examples.benchmarks.tables import Record

__all__ = ["BYTES_PER_PAIR", "BYTES_PER_TOKEN", "COLUMNS", "growth_of_state", "state_bytes"]

# Limits per pair, and with idf=True also per matched token.
BYTES_PER_PAIR = 32
BYTES_PER_TOKEN = 8

_WARM_UPDATES = 20

COLUMNS = {
    "kind": "",
    "indices": "",
    "batch_size": "",
    "pairs": ",",
    "tokens": ",",
    "state_per_pair": ".2f",
    "state_per_token": ".2f",
    "limit_per_pair": ".2f",
    "process_per_pair": ".2f",
    "over_limit": "+.1%",
}


def growth_of_state(
    kind: str, indices: bool, batch_size: int, num_pairs: int, tokens: tuple[int, int] = (20, 60)
) -> Record:
    """Update a metric with generated pairs in a separate process and measure the growth of its memory.

    A tenth of the pairs, and at least 20 updates, come before the first reading, so that one-time allocations do not
    count.

    Args:
        kind: one of ``feeding.KINDS``.
        indices: pass an index with each pair.
        batch_size: pairs per update.
        num_pairs: number of pairs.
        tokens: smallest and largest number of tokens per text.

    Returns:
        The arguments; the ``tokens`` of candidates and references; in bytes the growth of the ``state`` (the storages
        of its tensors) and of the ``process`` (its resident memory), and the ``limit`` of both; these per pair, with
        ``kind="idf"`` the state also per token; and the share by which the process is over the limit.
    """
    added_tokens, state, process = run_fresh(_grow, kind, indices, batch_size, num_pairs, tokens)
    per_token = kind == "idf"
    limit = BYTES_PER_PAIR * num_pairs + (BYTES_PER_TOKEN * added_tokens if per_token else 0)
    return {
        "kind": kind,
        "indices": indices,
        "batch_size": batch_size,
        "pairs": num_pairs,
        "tokens": added_tokens,
        "state": state,
        "process": process,
        "limit": limit,
        "state_per_pair": state / num_pairs,
        "state_per_token": state / added_tokens if per_token else None,
        "limit_per_pair": limit / num_pairs,
        "process_per_pair": process / num_pairs,
        "over_limit": process / limit - 1,
    }


def state_bytes(metric: BERTScore) -> int:
    """Return the memory of the state's tensors, counting whole storages.

    Args:
        metric: the metric.

    Returns:
        Bytes.
    """
    storages = {}
    for state in metric.metric_state.values():
        for tensor in [state] if isinstance(state, Tensor) else state:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _grow(kind: str, indices: bool, batch_size: int, num_pairs: int, tokens: tuple[int, int]) -> tuple[int, int, int]:
    encoder = MadeUpEncoder(tokens)
    metric = make_metric(kind, encoder)
    first = max(num_pairs // 10, _WARM_UPDATES * batch_size)
    feed(metric, range(first), batch_size, indices)
    # Freed memory that the C library keeps would otherwise count in one reading and not in the other.
    return_freed_memory()
    state, counts, process = state_bytes(metric), encoder.counts, resident_bytes()
    feed(metric, range(first, first + num_pairs), batch_size, indices)
    return_freed_memory()
    state = state_bytes(metric) - state
    return (encoder.counts - counts).tokens, state, resident_bytes() - process
