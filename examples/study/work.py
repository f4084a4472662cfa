"""Jobs of a study's processes: make missing checkpoints, candidates and runs in the study's folder."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import DistilledTargets, choose_targets, make_candidates, read_candidates
from bertscore_tm.utilities.files import write_atomically
from examples.docstring_training import quieten
from examples.study.arms import ARMS, BASELINE, Arm
from examples.study.generator import TARGET_TOKENS, Example, Generator, load_generator, make_generator
from examples.study.measures import measure
from examples.study.texts import Pair, Texts, load_texts
from examples.study.training import (
    Settings,
    make_loss,
    random_targets,
    replaced,
    seconds_per_step,
    train,
    train_to_plateau,
)

__all__ = [
    "START",
    "checkpoint_facts",
    "ensure_candidates",
    "ensure_checkpoint",
    "ensure_examples",
    "ensure_run",
    "ensure_timing",
    "prepare_process",
    "run_path",
]

START = "start"
"""The checkpoint itself, which is measured like an arm."""

_TIMED_ROUNDS = 15


def prepare_process() -> None:
    """Set up a process: one thread, and no messages of transformers."""
    torch.set_num_threads(1)
    quieten()


def ensure_examples(settings: Settings, output: Path) -> str:
    """Collect the texts and encode the documents, unless they are stored.

    Args:
        settings: settings of the study.
        output: folder of the study.

    Returns:
        One line about them.
    """
    path = output / "examples.pt"
    texts = _texts(settings, output)
    if not path.exists():
        generator = _new_generator(settings, texts.train, 0)  # the frozen half is the same for all seeds
        sides = {}
        for side, pairs in vars(texts).items():
            states = generator.encode([pair.document for pair in pairs])
            sides[side] = [(row, pair.summary) for row, pair in zip(states, pairs, strict=True)]
        with write_atomically(path, "wb") as file:
            torch.save(sides, file)
    return f"{len(texts.train)} training, {len(texts.validation)} validation and {len(texts.held_out)} held-out pairs"


def ensure_checkpoint(settings: Settings, output: Path, number: int) -> str:
    """Train a checkpoint to the plateau of cross-entropy, unless it is stored.

    Args:
        settings: settings of the study.
        output: folder of the study.
        number: number of the checkpoint, from 0, which is the seed of its training.

    Returns:
        One line about it.
    """
    folder = _folder(output, number)
    path = folder / "curve.json"
    if not path.exists():
        generator = _new_generator(settings, _texts(settings, output).train, number)
        sides = _examples(output)
        folder.mkdir(parents=True, exist_ok=True)
        curve = train_to_plateau(
            generator, sides["train"], sides["validation"], settings, number, lambda: generator.save(folder)
        )
        with write_atomically(path) as file:
            json.dump([asdict(epoch) for epoch in curve], file)
    curve = json.loads(path.read_text(encoding="utf-8"))
    return f"checkpoint {number}: epoch {_best(curve)} of {len(curve)}, F1 {max(one['f1'] for one in curve):.4f}"


def ensure_candidates(settings: Settings, output: Path, number: int) -> str:
    """Make the candidates of a checkpoint and choose the best, unless they are stored.

    Args:
        settings: settings of the study.
        output: folder of the study.
        number: number of the checkpoint.

    Returns:
        One line about them.
    """
    folder = _folder(output, number)
    path = folder / "chosen.json"
    if not path.exists():
        pairs = _texts(settings, output).train[: settings.arm_pairs or None]
        generator = load_generator(folder)
        began = time.process_time()
        candidates = make_candidates(
            generator.model,
            generator.tokenizer,
            pairs,
            lambda batch: generator.inputs([pair.document for pair in batch]),
            folder / "candidates.jsonl",
            num_candidates=settings.num_candidates,
            max_new_tokens=TARGET_TOKENS,
            batch_size=32,
            seed=number,
        )
        made = time.process_time()
        encoder = FrozenEncoder(settings.encoder, num_layers=settings.layer)
        chosen = choose_targets(candidates, [pair.summary for pair in pairs], encoder, device="cpu")
        row = {
            "targets": chosen.targets,
            "gains": chosen.gains.tolist(),
            "num_refused": chosen.num_refused,
            "seconds": {"made": made - began, "chosen": time.process_time() - made},
        }
        with write_atomically(path) as file:
            json.dump(row, file)
    row = json.loads(path.read_text(encoding="utf-8"))
    seconds = sum(row["seconds"].values())
    return f"checkpoint {number}: {_targets(path)}; {seconds:.0f} s of CPU time"


def ensure_timing(settings: Settings, output: Path) -> dict[str, float]:
    """Time the step of every arm, unless it is stored.

    Args:
        settings: settings of the study.
        output: folder of the study.

    Returns:
        Median seconds of a step by arm.
    """
    path = output / "seconds_per_step.json"
    if not path.exists():
        generator, examples = load_generator(_folder(output, 0)), _examples(output)["train"]
        losses = {name: make_loss(arm, generator, settings, examples) for name, arm in ARMS.items()}
        with write_atomically(path) as file:
            json.dump(seconds_per_step(generator, examples, losses, settings, _TIMED_ROUNDS), file)
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found


def checkpoint_facts(output: Path, number: int) -> dict[str, Any]:
    """Return what is known of a checkpoint and its candidates.

    Args:
        output: folder of the study.
        number: number of the checkpoint.

    Returns:
        The validation curve, the number of the kept epoch, and number, mean gain and CPU seconds of the candidates.
    """
    folder = _folder(output, number)
    curve = json.loads((folder / "curve.json").read_text(encoding="utf-8"))
    row = json.loads((folder / "chosen.json").read_text(encoding="utf-8"))
    best = _targets(folder / "chosen.json")
    gains = best.gains[~best.gains.isnan()]
    return {
        "curve": curve,
        "kept_epoch": _best(curve),
        "chosen": len(gains),
        "examples": len(best.targets),
        "mean_gain": gains.mean().item(),
        "cpu_seconds": row["seconds"],
    }


def run_path(output: Path, number: int, name: str, seed: int) -> Path:
    """Return the path of a run's figures and summaries.

    Args:
        output: folder of the study.
        number: number of the checkpoint.
        name: name of the arm.
        seed: the seed.

    Returns:
        The path.
    """
    return _folder(output, number) / f"{name.replace(', ', '_').replace(' ', '_')}.seed{seed}.json"


def ensure_run(settings: Settings, output: Path, number: int, name: str, seed: int) -> str:
    """Run one arm with one seed, unless it is stored; ``START`` measures the checkpoint itself.

    Args:
        settings: settings of the study.
        output: folder of the study.
        number: number of the checkpoint.
        name: name of the arm.
        seed: seed of the order of the batches, dropout and replaced targets.

    Returns:
        One line about the run.
    """
    path = run_path(output, number, name, seed)
    if not path.exists():
        generator, sides = load_generator(_folder(output, number)), _examples(output)
        result: dict[str, Any] = {"checkpoint": number, "arm": name, "seed": seed}
        if name in ARMS:
            steps = arm_steps(ARMS[name], settings, ensure_timing(settings, output))
            loss = make_loss(ARMS[name], generator, settings, sides["train"])
            examples = _arm_examples(ARMS[name], settings, output, number, seed)
            result |= {"steps": steps, "seconds": train(generator, examples, loss, settings, steps, seed)}
        states, references = zip(*sides["held_out"], strict=True)
        summaries = generator.summarize(states)
        encoder = FrozenEncoder(settings.encoder, num_layers=max(settings.held_out_layers), all_layers=True)
        layers = [settings.layer, *settings.held_out_layers]
        result |= {"measured": measure(summaries, references, encoder, layers), "summaries": summaries}
        with write_atomically(path) as file:
            json.dump(result, file)
    row = json.loads(path.read_text(encoding="utf-8"))
    f1 = row["measured"][f"layer{settings.held_out_layers[-1]}_f1"]
    return f"checkpoint {number}, {name}, seed {seed}: F1 {sum(f1) / len(f1):.4f} ({row.get('seconds', 0):.0f} s)"


def arm_steps(arm: Arm, settings: Settings, seconds: dict[str, float]) -> int:
    """Return the number of steps of an arm.

    Args:
        arm: the arm.
        settings: settings of the study.
        seconds: seconds of a step by arm.

    Returns:
        The steps of all arms, or as many as fit into the time of the dearest.
    """
    if not arm.at_wall_time:
        return settings.steps
    return round(settings.steps * max(seconds.values()) / seconds[BASELINE])


def _arm_examples(arm: Arm, settings: Settings, output: Path, number: int, seed: int) -> Any:
    examples = _examples(output)["train"][: settings.arm_pairs or None]
    if arm.targets == "reference":
        return examples
    best = _targets(_folder(output, number) / "chosen.json")
    if arm.targets == "best":
        return replaced(examples, best.targets, settings, seed)
    candidates = read_candidates(_folder(output, number) / "candidates.jsonl")
    return replaced(examples, random_targets(best, candidates, seed), settings, seed)


def _folder(output: Path, number: int) -> Path:
    return output / f"checkpoint{number}"


def _best(curve: list[dict[str, float]]) -> int:
    """Return the number of the epoch whose weights are kept, from 1."""
    return max(range(len(curve)), key=lambda i: curve[i]["f1"]) + 1


def _texts(settings: Settings, output: Path) -> Texts:
    return load_texts(output / "texts.json", settings.train_pairs, settings.held_out_pairs)


def _new_generator(settings: Settings, pairs: list[Pair], seed: int) -> Generator:
    return make_generator(settings.encoder, settings.encoder_layers, settings.decoder_layers, pairs, seed)


@cache
def _examples(output: Path) -> dict[str, list[Example]]:
    examples: dict[str, list[Example]] = torch.load(output / "examples.pt", weights_only=True)
    return examples


def _targets(path: Path) -> DistilledTargets:
    row = json.loads(path.read_text(encoding="utf-8"))
    return DistilledTargets(row["targets"], torch.tensor(row["gains"]), row["num_refused"])
