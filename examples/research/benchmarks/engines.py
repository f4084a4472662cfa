"""Speed of engines that divide pairs among two processes, and the memory of the process that starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertscore_tm import PairScorer
from examples.research.benchmarks.package import LAYER, MODEL
from examples.research.benchmarks.processes import peak_growth, resident_bytes, run_fresh
from examples.research.benchmarks.rounds import Figure, in_turn, ratios
from examples.research.benchmarks.texts import Options

_PAIRS = 4_000
_TASKS = 4
ENGINES = ("ray", "spark", "datasets")
_COLUMNS = "candidate string, reference string, precision float, recall float, f1 float"


def measure(options: Options) -> Iterator[Figure]:
    """Measure the speed of two processes by that of one, each with one thread, and the driver's memory.

    Engines are started and models loaded before each timing, except by torchrun and the shell's command, which it is
    compared with.

    Yields:
        Pairs per second of one process, and how many times as fast two are; the peak of the driver's resident memory
        at these and ten times as many pairs, with one layer and few words per text.
    """
    pairs = options.pairs or _PAIRS
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        rows = write_rows(options.texts, pairs, Path(folder))
        scorer = PairScorer(MODEL, num_layers=LAYER, device="cpu")
        few = write_rows(options.texts, _TASKS, Path(folder, "few"))
        scorers = {engine: load_engine(engine, scorer, rows) for engine in ENGINES}
        # Spark ends processes that had no work for a minute, in which the others are measured.
        preparations = {engine: load_engine(engine, scorer, few) for engine in ENGINES}
        alone, command = partial(score_alone, scorer, rows), partial(score_in_shell, Path(folder))
        seconds = in_turn(
            {"alone": alone, **scorers, "command": partial(command, 1), "torchrun": partial(command, 2)},
            options.rounds,
            preparations,
        )
        for name, what in {"alone": "one process", "command": "the shell's command"}.items():
            yield Figure(f"{pairs:,} pairs: {what}", [pairs / time for time in seconds[name]], "pairs per second")
        for engine in (*ENGINES, "torchrun"):
            one = seconds["command" if engine == "torchrun" else "alone"]
            yield Figure(f"{pairs:,} pairs: {engine}, faster than one process", ratios(one, seconds[engine]), "times")
    torch.set_num_threads(threads)
    for engine in ENGINES:
        for count in (pairs, 10 * pairs):
            peak = run_fresh(driver_peak, engine, options.texts, count) / 1e6
            yield Figure(f"{engine}: driver's memory at {count:,} pairs", [peak], "MB")


def write_rows(texts: Sequence[tuple[str, str]], pairs: int, folder: Path, words: int | None = None) -> Path:
    """Write distinct pairs to a file of JSON lines in a folder, and to a file per side for the shell."""
    folder.mkdir(exist_ok=True)
    chosen = [texts[i % len(texts)] for i in range(pairs)]
    sides = [
        [" ".join([*side.split()[:words], str(i)]) for i, side in enumerate(each)] for each in zip(*chosen, strict=True)
    ]
    for name, lines in zip(("candidate", "reference"), sides, strict=True):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    records = [{"candidate": candidate, "reference": reference} for candidate, reference in zip(*sides, strict=True)]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def score_alone(scorer: PairScorer, rows: Path) -> None:
    """Score in this process, in as many batches as there are tasks."""
    import pandas as pd

    table = pd.read_json(rows, lines=True)
    size = -(-len(table) // _TASKS)
    for start in range(0, len(table), size):
        scorer(table[start : start + size])


def score_in_shell(folder: Path, processes: int) -> None:
    """Score two files of texts with the shell's command."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    files = ["-c", folder / "candidate.txt", "-r", folder / "reference.txt", "--output", folder / "scores.tsv"]
    command = ["-m", "bertscore_tm.cli", "score", *files, "--per-segment", "--model", MODEL, "--num-layers", str(LAYER)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *launcher, *command], check=True, capture_output=True, env=environment)  # noqa: S603


def load_engine(engine: str, scorer: PairScorer, path: Path) -> Callable[[], Any]:
    """Start an engine with two processes and return a function that scores the rows of a file."""
    if engine == "ray":
        import ray

        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True
        )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # Otherwise reading keeps one of the two processors for the first second.
        context.op_resource_reservation_enabled = False
        output = path.with_name("scored_by_ray")
        return lambda: (
            ray.data.read_json(str(path))
            .repartition(_TASKS)
            .map_batches(scorer, batch_size=None, batch_format="pyarrow", num_cpus=1)
            .write_parquet(str(output))
        )
    if engine == "spark":
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

        session: Any = SparkSession.builder
        session = session.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
        return lambda: (
            session.read.json(str(path))
            .repartition(_TASKS)
            .mapInArrow(lambda batches: map(scorer, batches), _COLUMNS)
            .write.mode("overwrite")
            .parquet(str(path.with_name("scored_by_spark")))
        )
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    return lambda: Dataset.from_json(str(path), cache_dir=str(path.with_name("cache"))).map(
        scorer, batched=True, batch_size=500, num_proc=2, load_from_cache_file=False
    )


def driver_peak(engine: str, texts: Sequence[tuple[str, str]], pairs: int) -> int:
    """Return the peak of this process's resident memory while an engine scores, in bytes."""
    with TemporaryDirectory() as folder:
        path = run_fresh(write_rows, texts, pairs, Path(folder), 3)
        score = load_engine(engine, PairScorer(MODEL, num_layers=1, device="cpu"), path)
        return resident_bytes() + peak_growth(score)
