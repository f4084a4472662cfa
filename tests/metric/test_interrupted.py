"""A rank whose other rank dies or is silent ends with an error and keeps its pairs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES, bert_score
from tests.support.ranks import run_separate_ranks
from tests.support.texts import real_pairs

pytestmark = pytest.mark.distributed

LAYERS = 2
SHARES = ([0, 1, 2, 3], [4, 5, 6])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_collectives(count: int) -> None:
    """Let this process take part in so many collectives and die before the next."""
    left = [count]

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                die()
            left[0] -= 1
            return function(*args, **kwargs)

        return collective

    for name in ("all_gather", "all_reduce", "barrier"):
        setattr(dist, name, dying(getattr(dist, name)))


def compute_without_the_other_rank(
    rank: int, report: dict[str, Any], model: str, pairs: Any, idf: bool, other: str
) -> None:
    """Rank 0 computes; the other rank dies or never calls ``compute``."""
    # A rank that dies is noticed at once, a silent one after this time.
    group = dist.new_group(timeout=timedelta(seconds=1 if other == "is silent" else 60))
    encoder = FrozenEncoder(model, num_layers=LAYERS)
    metric = BERTScore(encoder, idf=idf, process_group=group)
    metric.update(*([side[i] for i in SHARES[rank]] for side in pairs))
    # Lets both come this far, so that it is the metric's own collectives that fail.
    dist.barrier()
    if (rank, other) == (1, "dies within compute"):
        # A gather of torchmetrics takes three: the first is complete, and the document frequencies are not.
        die_after_collectives(3)
    while (rank, other) == (1, "is silent"):
        time.sleep(60)
    try:
        metric.compute()
    except Exception as error:
        report["error"] = (type(error).__name__, str(error))
        alone = BERTScore(encoder, idf=idf, sync_on_compute=False)
        alone.merge_state(metric)
        report["own"] = alone.compute()
        raise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("idf", "other"),
    [(False, "is silent"), (True, "dies within compute")],
)
def test_a_rank_without_the_other_ends_with_an_error_and_its_pairs(minilm, idf, other):
    pairs = real_pairs(7)
    endless = (1,) if other == "is silent" else ()
    first, second = run_separate_ranks(compute_without_the_other_rank, 2, minilm, pairs, idf, other, endless=endless)
    assert second.exit_code == -signal.SIGKILL
    # A killed rank has the exit code of its signal, and this one ended by itself.
    assert first.exit_code == 1
    kind, message = first.report["error"]
    print(f"{other}: {kind}: {message}")
    assert kind in ("RuntimeError", "DistBackendError", "DistNetworkError")
    wanted = bert_score(
        *([side[i] for i in SHARES[0]] for side in pairs), FrozenEncoder(minilm, num_layers=LAYERS), idf=idf
    )
    for name in SCORES:
        assert first.report["own"][name].item() == pytest.approx(wanted[name].mean().item(), abs=1e-6)
