"""Continue training from the plateau of cross-entropy with and without the BERTScore loss, over several seeds.

An interrupted study resumes where it stopped; a larger --seeds extends it. --tables prints a finished study instead.

    python -m examples.study
    python -m examples.study --tables examples/study/results.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path
from typing import Any

from bertscore_tm.utilities.files import write_atomically
from examples.docstrings import DocstringPair, positive, quieten
from examples.study.manual_pages import collect_pages, split_pages
from examples.study.results import BASELINE, compare, spreads, tables
from examples.study.training import (
    HELD_OUT_LAYERS,
    LAYER,
    Generator,
    Settings,
    make_generator,
    make_loss,
    measure,
    seconds_per_step,
    train,
    train_to_plateau,
)

START, LONGER, SOFT = "start", "cross-entropy, wall time", "soft"
ARMS = (BASELINE, LONGER, SOFT)
"""Cross-entropy; the same for as many steps as fit into the time of the dearest arm; and the BERTScore loss added."""


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the missing parts of the study, print its tables, and write and return ``results.json``."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=positive, default=10, help="runs of each arm from each checkpoint")
    parser.add_argument("--checkpoints", type=positive, default=2)
    parser.add_argument("--output", type=Path, default=Path("outputs/study"))
    parser.add_argument("--tables", type=Path, metavar="RESULTS", help="print the tables of a results.json, and stop")
    for one in fields(Settings):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=one.default)
    options = parser.parse_args(arguments)
    if options.tables is not None:
        results: dict[str, Any] = json.loads(options.tables.read_text(encoding="utf-8"))
        print(*tables(results), sep="\n\n")
        return results
    settings = Settings(**{one.name: getattr(options, one.name) for one in fields(Settings)})
    options.output.mkdir(parents=True, exist_ok=True)
    known = _stored(options.output / "settings.json", lambda: asdict(settings))
    if known != asdict(settings):
        other = ", ".join(f"{key} {known[key]}" for key, value in asdict(settings).items() if known[key] != value)
        parser.error(f"--output {options.output} contains a study with {other}: pass another folder or these settings")

    quieten()
    pages = _stored(options.output / "texts.json", lambda: [asdict(page) for page in collect_pages()])
    corpus = split_pages([DocstringPair(**page) for page in pages])
    counts = ", ".join(f"{len(pairs)} {side}" for side, pairs in corpus._asdict().items())
    if len(corpus.test) < settings.held_out_pairs or not corpus.train or not corpus.validation:
        parser.error(
            f"--held-out-pairs {settings.held_out_pairs} exceeds what this machine's manual pages give ({counts}): "
            f"install more manual pages, or pass a smaller number"
        )
    pairs = corpus.train[: settings.train_pairs or None]
    # The frozen half is the same for all seeds.
    first = make_generator(pairs, settings, 0)
    sides = map(first.encode, (pairs, corpus.validation, corpus.test[: settings.held_out_pairs]))
    examples, validation, held_out = sides
    arm_examples, references = examples[: settings.arm_pairs or None], [summary for _, summary in held_out]

    def run_start(folder: Path, number: int) -> list[dict[str, float]]:
        generator = make_generator(pairs, settings, number)
        return train_to_plateau(generator, examples, validation, settings, number, lambda: generator.save(folder))

    def time_steps() -> dict[str, float]:
        generator = Generator.load(options.output / "checkpoint0")
        losses = {BASELINE: None, SOFT: make_loss(generator, examples)}
        found = seconds_per_step(generator, examples, losses, settings, rounds=15)
        return {BASELINE: found[BASELINE], LONGER: found[BASELINE], SOFT: found[SOFT]}

    def run_arm(folder: Path, arm: str, seed: int) -> dict[str, Any]:
        generator = Generator.load(folder)
        if arm != START:
            loss = make_loss(generator, examples) if arm == SOFT else None
            train(generator, arm_examples, loss, settings, steps[arm], seed)
        summaries = generator.summarize(held_out)
        return {"measured": measure(summaries, references), "summaries": summaries}

    folders = [options.output / f"checkpoint{number}" for number in range(options.checkpoints)]
    checkpoints = []
    for number, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        curve = _stored(folder / "curve.json", lambda folder=folder, number=number: run_start(folder, number))
        checkpoints.append({"curve": curve, "kept_epoch": 1 + max(range(len(curve)), key=lambda i: curve[i]["f1"])})
    seconds = _stored(options.output / "seconds_per_step.json", time_steps)
    steps = dict.fromkeys(ARMS, settings.steps)
    steps[LONGER] = round(settings.steps * max(seconds.values()) / seconds[BASELINE])
    # Seeds in the outer loop, so that an interrupted study has complete seeds.
    keys = [(START, number, 0) for number in range(len(folders))]
    keys += [(arm, number, seed) for seed, number, arm in product(range(options.seeds), range(len(folders)), ARMS)]
    runs = {}
    for arm, number, seed in keys:
        path = folders[number] / f"{arm.replace(', ', '_').replace(' ', '_')}.seed{seed}.json"
        found = _stored(path, lambda arm=arm, number=number, seed=seed: run_arm(folders[number], arm, seed))
        runs[arm, number, seed] = found["measured"]
        print(f"{path.stem}, checkpoint {number}: done", flush=True)

    measures = [*(f"layer{layer}_f1" for layer in (LAYER, *HELD_OUT_LAYERS)), "rougeL", "repetition"]
    results = {
        "settings": asdict(settings) | {"layer": LAYER, "held_out_layers": list(HELD_OUT_LAYERS)},
        "checkpoints": checkpoints,
        "seeds": options.seeds,
        "seconds_per_step": seconds,
        "steps": steps,
        "arms": spreads(runs),
        "comparisons": compare({key: run for key, run in runs.items() if key[0] != START}, measures),
    }
    with write_atomically(options.output / "results.json") as file:
        file.write(json.dumps(results, indent=2) + "\n")
    print(*tables(results), f"Written: {options.output / 'results.json'}", sep="\n\n")
    return results


def _stored(path: Path, make: Callable[[], Any]) -> Any:
    """Return the content of a JSON file, which is made first if it is missing."""
    if not path.exists():
        content = make()
        with write_atomically(path) as file:
            json.dump(content, file)
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
