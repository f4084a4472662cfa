"""The session's ranks survive what a job does to them."""

import os
import random
import signal
import warnings

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import RankError, run_ranks

pytestmark = pytest.mark.distributed


def sum_over_ranks(rank, value):
    total = torch.tensor(value + rank)
    dist.all_reduce(total)
    return os.getpid(), dist.get_world_size(), total.item()


def leave_changes(rank):
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.manual_seed(rank)
    random.seed(rank)
    warnings.simplefilter("error")


def read_changes(rank):
    return os.environ.get("LOCAL_RANK"), torch.get_default_dtype(), torch.is_grad_enabled(), warnings.filters[0][0]


def fail_on_the_second_rank(rank, how):
    if rank == 0:
        dist.barrier()
    elif how == "raises":
        raise ValueError("not today")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def test_ranks_stay_alive_and_forget_what_a_job_changed():
    first = run_ranks(sum_over_ranks, 2, 10)
    before = run_ranks(read_changes, 2)
    run_ranks(leave_changes, 2)
    assert run_ranks(read_changes, 2) == before
    three = run_ranks(sum_over_ranks, 3, 10)
    assert [found[1:] for found in first] == [(2, 21)] * 2
    assert [found[1:] for found in three] == [(3, 33)] * 3
    assert [found[0] for found in three[:2]] == [found[0] for found in first]
    assert not {found[0] for found in run_ranks(sum_over_ranks, 2, 0, fresh=True)} & {found[0] for found in three}


@pytest.mark.parametrize(
    ("how", "message"), [("raises", "rank 1 failed: .*not today"), ("dies", "rank 1 failed: the process died")]
)
def test_a_failed_rank_fails_the_job_alone(how, message):
    with pytest.raises(RankError, match=f"(?s){message}"):
        run_ranks(fail_on_the_second_rank, 2, how)
    assert [found[2] for found in run_ranks(sum_over_ranks, 2, 1)] == [3, 3]
