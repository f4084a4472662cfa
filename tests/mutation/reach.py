"""Which tests run which lines, and which of them a mutant needs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutation.operators import Mutant

# By test, its CPU seconds, those of its fixtures by name, and the lines that it runs by file.
Records = dict[str, dict[str, Any]]


class Recorder:
    """A pytest plugin that writes the lines of some files that each passing test runs, and its CPU time."""

    def __init__(self, root: Path, files: Iterable[str], output: Path) -> None:
        self.output = output
        self.names = {str(root / name): name for name in files}
        self.lines: set[tuple[str, int]] = set()
        self.fixtures: dict[str, tuple[float, set[tuple[str, int]]]] = {}
        self.setup_seconds = 0.0
        self.passed: set[str] = set()
        self.records: Records = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Record the line of a frame of the files; do not trace other frames."""
        if frame.f_code.co_filename not in self.names:
            return None
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.trace

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Record a fixture apart: its lines are lines of all tests that use it."""
        outer, self.lines, start = self.lines, set(), time.process_time()
        try:
            return (yield)
        finally:
            seconds = time.process_time() - start
            self.setup_seconds += seconds
            self.fixtures[fixturedef.argname] = seconds, self.lines
            self.lines = self.lines | outer

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        """Record one test."""
        self.lines, self.setup_seconds, start = set(), 0.0, time.process_time()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            if item.nodeid in self.passed:
                seconds = time.process_time() - start - self.setup_seconds
                fixtures = {name: self.fixtures[name] for name in item.fixturenames if name in self.fixtures}
                lines = defaultdict(list)
                for file, line in sorted(self.lines.union(*(run for _, run in fixtures.values()))):
                    lines[self.names[file]].append(line)
                setups = {name: cost for name, (cost, _) in fixtures.items()}
                self.records[item.nodeid] = {"seconds": seconds, "fixtures": setups, "lines": lines}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note that a test passes."""
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the records."""
        self.output.write_text(json.dumps(self.records), encoding="utf-8")


def choose_tests(records: Records, mutant: Mutant, most: int, budget: float) -> list[str]:
    """Return tests that run a mutant's lines, grouped by file, the most specific file first.

    The most specific test, which runs the fewest lines, of each file is chosen first, then the second of each file, and
    further cases of parametrized tests last; a test that exceeds the rest of the budget is left out.
    """
    reached = set(range(mutant.lines[0], mutant.lines[1] + 1))
    turns: Counter[str] = Counter()
    places = {}
    for test, record in sorted(records.items(), key=lambda item: sum(map(len, item[1]["lines"].values()))):
        if not reached.isdisjoint(record["lines"].get(mutant.path, [])):
            function, file = test.partition("[")[0], test.partition("::")[0]
            turns[function] += 1
            turns[file] += turns[function] == 1
            places[test] = (turns[function], turns[file], len(places), file)
    chosen: list[str] = []
    paid: set[str] = set()
    for test in sorted(places, key=places.__getitem__):
        fixtures = records[test]["fixtures"]
        cost = records[test]["seconds"] + sum(fixtures[name] for name in fixtures.keys() - paid)
        if cost <= budget and len(chosen) < most:
            chosen.append(test)
            paid |= fixtures.keys()
            budget -= cost
    chosen = chosen or list(places)[:1]
    files = list(dict.fromkeys(places[test][-1] for test in chosen))
    return sorted(chosen, key=lambda test: files.index(places[test][-1]))
