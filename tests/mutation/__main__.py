"""Run the mutation tests: ``python -m tests.mutation [--count 140] [--budget 15] [--results FILE] [PATTERN ...]``.

Each mutant is one change to one file of a copy of the checkout. Its tests run in a process forked from one that has
imported the libraries, the cheapest first, until one fails (the mutant is killed) or the budget of CPU seconds is used
up (it survives). Tests marked slow or distributed do not run. A run with a results file is resumed where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from fnmatch import fnmatch
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.targets import FOLDERS, IMPORTS, TARGETS

SEED = 0
CPU_LIMIT_S = 90
# A mutant that makes ranks wait for each other uses no CPU.
WALL_LIMIT_S = 1800


class Budget:
    """A pytest plugin that starts no further test when a number of CPU seconds is used up."""

    def __init__(self, seconds: float) -> None:
        self.limit = time.process_time() + seconds
        self.is_used_up = False

    def pytest_runtest_teardown(self, item: Any, nextitem: Any) -> None:
        """Stop the session after this test."""
        if time.process_time() > self.limit:
            self.is_used_up = True
            item.session.shouldstop = "the budget is used up"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="files to mutate, for example 'bertscore_tm/core/*' (default: all)")
    parser.add_argument("--count", type=int, default=140, help="number of mutants (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="file that keeps one JSON line per mutant")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="checkout to test")
    parser.add_argument(
        "--budget", type=float, default=15.0, help="CPU seconds of one mutant after which no test starts (%(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants and run nothing")
    options = parser.parse_args()

    root = options.root.resolve()
    chosen = sample(root, options.patterns, options.count)
    if options.list:
        print("\n".join(mutant.key for mutant in chosen))
        return
    results = read_results(options.results)
    for module in IMPORTS:
        import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        copy_checkout(root, copy)
        # One file represents all files with the same tests.
        todo = {target_of(mutant.path): mutant.path for mutant in chosen if mutant.key not in results}
        for path in todo.values():
            outcome, seconds, text = run_tests(copy, path, options.budget)
            if outcome != "survived":
                sys.exit(f"the tests of {path} fail without a change:\n{text}")
            print(f"{path}: its tests pass in {seconds:.0f} CPU s", flush=True)
        for number, mutant in enumerate(chosen, 1):
            if mutant.key in results:
                continue
            outcome, seconds, text = run_mutant(copy, mutant, options.budget)
            results[mutant.key] = {"outcome": outcome, "seconds": round(seconds, 1), "by": text}
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": mutant.key, **results[mutant.key]}) + "\n")
            print(f"{number}/{len(chosen)} {outcome} in {seconds:.0f} CPU s: {mutant.key} {text}", flush=True)
    print(report(chosen, results))


def sample(root: Path, patterns: list[str], count: int) -> list[Mutant]:
    """Draw mutants: of each file in proportion to its number, and in each file of every operator in turn."""
    found: dict[str, list[Mutant]] = {}
    for path in sorted(chain.from_iterable(root.glob(pattern) for pattern in TARGETS)):
        name = path.relative_to(root).as_posix()
        if not patterns or any(fnmatch(name, pattern) for pattern in patterns):
            found[name] = mutants_of(name, path.read_text(encoding="utf-8"))
    total = sum(map(len, found.values()))
    chosen: list[Mutant] = []
    for name, mutants in found.items():
        drawn = random.Random(f"{SEED} {name}")
        by_operator = defaultdict(list)
        for mutant in drawn.sample(mutants, len(mutants)):
            by_operator[mutant.operator].append(mutant)
        in_turn = [one for one in chain.from_iterable(zip_longest(*by_operator.values())) if one is not None]
        chosen += sorted(in_turn[: -(-count * len(mutants) // total)], key=lambda mutant: mutant.start)
    return chosen


def copy_checkout(root: Path, copy: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name, ignore=ignored)
    for path in root.iterdir():
        if path.is_file():
            shutil.copy2(path, copy / path.name)


def run_mutant(copy: Path, mutant: Mutant, budget: float) -> tuple[str, float, str]:
    """Change the file, run its tests and change it back."""
    path = copy / mutant.path
    source = path.read_text(encoding="utf-8")
    try:
        write_source(path, mutant.apply(source))
        return run_tests(copy, mutant.path, budget)
    finally:
        write_source(path, source)


def write_source(path: Path, source: str) -> None:
    """Write a source file and remove its bytecode, which may be as new and as long as that of another mutant."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def run_tests(copy: Path, path: str, budget: float) -> tuple[str, float, str]:
    """Run the tests of a file in a forked process.

    Returns:
        "killed" or "survived", the CPU seconds and the test that failed.
    """
    output = copy / "output.txt"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if not pid:
        _run_pytest(copy, path, output, budget)
    status = _wait(pid)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    text = output.read_text(encoding="utf-8", errors="replace")
    if status == 0:
        return "survived", seconds, ""
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if os.WIFSIGNALED(status):
        return "killed", seconds, f"signal {os.WTERMSIG(status)}"
    return "killed", seconds, failed[0][:200] if failed else text[-2000:]


def _run_pytest(copy: Path, path: str, output: Path, budget: float) -> None:
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        # This program is imported from the checkout, and the tests from the copy.
        for name in [name for name in sys.modules if name.split(".")[0] in FOLDERS]:
            del sys.modules[name]
        sys.path[:] = [str(copy), *(entry for entry in sys.path if entry)]
        import pytest
        import torch

        torch.set_num_threads(1)
        stop = Budget(budget)
        options = [
            "-x",
            "-q",
            "-m",
            "not slow and not distributed",
            "-p",
            "no:cacheprovider",
            "-n",
            "0",
            "--no-header",
            "--tb=line",
        ]
        code = int(pytest.main([*options, *tests_of(copy, path)], plugins=[stop]))
        if code == pytest.ExitCode.INTERRUPTED and stop.is_used_up:
            code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def tests_of(copy: Path, path: str) -> list[str]:
    """Return the tests of a file that exist: its docstrings' examples, then those of its target."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if not module.startswith("bertscore_tm"):
        module = f"bertscore_tm.{module}"
    tests = [name.format(stem=Path(path).stem) for name in TARGETS[target_of(path)]]
    examples = f"tests/package/test_docstrings.py::test_examples_run[{module}]"
    return [examples, *(name for name in dict.fromkeys(tests) if (copy / name).exists())]


def target_of(path: str) -> str:
    """Return the first pattern that a file matches."""
    return next(pattern for pattern in TARGETS if fnmatch(path, pattern))


def _wait(pid: int) -> int:
    limit = time.monotonic() + WALL_LIMIT_S
    while time.monotonic() < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.05)
    os.killpg(pid, 9)
    return os.waitpid(pid, 0)[1]


def read_results(path: Path | None) -> dict[str, dict[str, str | float]]:
    if path is None or not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {entry.pop("key"): entry for entry in map(json.loads, lines)}


def report(chosen: list[Mutant], results: dict[str, dict[str, str | float]]) -> str:
    """Return the table of all files and the mutants that survived."""
    counts: Counter[tuple[str, str]] = Counter()
    survivors = []
    for mutant in chosen:
        outcome = str(results[mutant.key]["outcome"])
        counts[mutant.path, outcome] += 1
        counts["all", outcome] += 1
        if outcome == "survived":
            survivors.append(mutant)
    lines = [f"{'file':45} {'killed':>7} {'survived':>9}"]
    for path in [*sorted({mutant.path for mutant in chosen}), "all"]:
        lines.append(f"{path:45} {counts[path, 'killed']:7} {counts[path, 'survived']:9}")
    for mutant in survivors:
        lines += [f"\n{mutant.path}:{mutant.line} {mutant.operator}", f"- {mutant.before}", f"+ {mutant.after}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
