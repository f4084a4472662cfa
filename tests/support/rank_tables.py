"""Tables of cases on 2 and 3 ranks: what is built, the batches of each rank, and the values of one process.

A test module defines ``TABLE``, a dictionary of cases, and one test::

    TABLE = {"mean": Case(compute=mean_of_batches, deal=deal_in_turn, expect=mean_by_torch)}


    @every_case(TABLE)
    def test_each_rank_has_the_value_of_one_process(ran, name):
        ran.check(name)

All cases of a table run in one start of 2 ranks and in one start of 3 ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.ranks import on_ranks, results

WORLD_SIZES = (2, 3)


@dataclass(frozen=True)
class Resources:
    """Files that all cases share: the encoder's folder, a baseline table, and a folder to write to."""

    model: str
    baseline: str
    folder: Path


@dataclass(frozen=True)
class Job:
    """What a case is called with on a rank: the batches of each rank, and the resources."""

    rank: int
    batches_by_rank: Sequence[Sequence[Any]]
    resources: Resources

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.batches_by_rank)

    @property
    def batches(self) -> list[Any]:
        """The batches of this rank."""
        return list(self.batches_by_rank[self.rank])

    @property
    def all_batches(self) -> list[Any]:
        """The batches of all ranks, in the order of the ranks."""
        batches = []
        for of_rank in self.batches_by_rank:
            batches.extend(of_rank)
        return batches


@dataclass(frozen=True)
class Case:
    """A row of a table.

    Attributes:
        compute: builds the object under test on a rank, gives it the batches of this rank, and returns its result.
        deal: returns the batches of each rank for a number of ranks.
        expect: returns the result of a rank by other code, in one process that knows the batches of all ranks.
        differs_by_rank: whether each rank has its own result. By default all have that of the first.
        world_sizes: numbers of ranks on which the case runs.
        tolerance: largest difference between numbers, absolute and as a share of the expected one.
    """

    compute: Callable[[Job], Any]
    deal: Callable[[int], Sequence[Sequence[Any]]]
    expect: Callable[[Job], Any]
    differs_by_rank: bool = False
    world_sizes: Sequence[int] = WORLD_SIZES
    tolerance: float = 1e-6


@dataclass(frozen=True)
class Ran:
    """The results of a table on all ranks of one start."""

    table: dict[str, Case]
    world_size: int
    resources: Resources
    reports: list[dict[str, Any]]

    def check(self, name: str) -> None:
        """Compare the result of each rank with that of one process, and with that of the first rank bit by bit."""
        case = self.table[name]
        batches = case.deal(self.world_size)
        of_ranks = results(self.reports, name)
        if case.differs_by_rank:
            for rank, result in enumerate(of_ranks):
                expected = case.expect(Job(rank, batches, self.resources))
                assert_same(result, expected, case.tolerance, place=f"rank {rank}")
            return
        expected = case.expect(Job(0, batches, self.resources))
        assert_same(of_ranks[0], expected, case.tolerance, place="rank 0")
        for rank, result in enumerate(of_ranks):
            assert_same(result, of_ranks[0], tolerance=0, place=f"rank {rank} next to rank 0")


def every_case(table: dict[str, Case]) -> pytest.MarkDecorator:
    """Parametrize a test by the cases of a table and the numbers of ranks; its arguments are ``ran`` and ``name``."""
    rows = []
    for world_size in WORLD_SIZES:
        for name, case in table.items():
            if world_size in case.world_sizes:
                rows.append(pytest.param(world_size, name, id=f"{name}-{world_size}"))
    return pytest.mark.parametrize(("ran", "name"), rows, indirect=["ran"])


def run_table(module: str, world_size: int, resources: Resources) -> list[dict[str, Any]]:
    """Run all cases in the ``TABLE`` of a module, in one start of some ranks; return the results of each rank."""
    return on_ranks(_yield_cases, module, world_size, resources, world_size=world_size)


def _yield_cases(rank: int, module: str, world_size: int, resources: Resources) -> Any:
    """Yield the names and functions of the cases of a module that run on this number of ranks."""
    for name, case in import_module(module).TABLE.items():
        if world_size in case.world_sizes:
            yield name, partial(case.compute, Job(rank, case.deal(world_size), resources))


def assert_same(result: Any, expected: Any, tolerance: float, place: str = "result") -> None:
    """Compare nested dictionaries and sequences: numbers and tensors up to a tolerance, everything else exactly."""
    if isinstance(expected, dict):
        assert set(result) == set(expected), place
        for key, value in expected.items():
            assert_same(result[key], value, tolerance, f"{place}, {key}")
    elif isinstance(expected, list | tuple):
        assert len(result) == len(expected), place
        for number, (part, value) in enumerate(zip(result, expected, strict=True)):
            assert_same(part, value, tolerance, f"{place}, {number}")
    elif isinstance(expected, Tensor | float):
        torch.testing.assert_close(
            result, expected, atol=tolerance, rtol=tolerance, msg=lambda text: f"{place}: {text}"
        )
    else:
        assert result == expected, place


def deal_in_turn(batches: Sequence[Any], world_size: int) -> list[list[Any]]:
    """Deal out batches in turn, as a distributed sampler does."""
    return [list(batches[rank::world_size]) for rank in range(world_size)]


def deal_none_to_the_last(batches: Sequence[Any], world_size: int) -> list[list[Any]]:
    """Deal out batches in turn to all ranks but the last, which has none."""
    return [*deal_in_turn(batches, world_size - 1), []]
