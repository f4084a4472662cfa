"""A failed rank fails the job, and the others do not wait for it."""

import os
import signal

import pytest
import torch.distributed as dist

from tests.support.ranks import RankError, run_ranks

pytestmark = pytest.mark.distributed


def fail_on_the_second_rank(rank, how):
    """Wait for the other rank, or fail as the second one."""
    if rank == 0:
        dist.barrier()
    elif how == "raises":
        raise ValueError("not today")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "message"), [("raises", "rank 1 failed: .*not today"), ("dies", "rank 1 failed: the process died")]
)
def test_a_failed_rank_fails_the_job(how, message):
    with pytest.raises(RankError, match=f"(?s){message}"):
        run_ranks(fail_on_the_second_rank, 2, how)
