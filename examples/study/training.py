"""Training of the shared start and of the arms that continue from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.utils.data import DataLoader

from bertscore_tm import FrozenEncoder
from bertscore_tm.callbacks import TemperatureAnnealing
from bertscore_tm.utilities.files import write_atomically
from examples.docstring_training import Collate, Soft, Summarizer, load_generator, quieten
from examples.study.arms import Arm
from examples.study.measures import Measured, measure
from examples.study.tasks import Pair, Task

__all__ = ["Settings", "make_module", "make_start", "run_arm", "training_batches"]


@dataclass(frozen=True)
class Settings:
    """Settings that all runs of a study share.

    Args:
        generator: name or folder of the trained model.
        generator_layers: layers of encoder and decoder of a generator made from an encoder.
        encoder: name or folder of the scoring encoder.
        num_layers: encoder layer of the losses.
        held_out_layers: other layers to score with.
        held_out_encoders: other encoders to score with, at their published layers.
        train_pairs: number of training pairs; 0 for all.
        eval_pairs: number of held-out pairs.
        start_steps: steps of cross-entropy for the shared start.
        steps: steps of each arm.
        batch_size: pairs per step.
        start_learning_rate: learning rate of the shared start.
        learning_rate: learning rate of the arms.
        accelerator: ``"cpu"``, ``"gpu"`` or another of Lightning's.
        precision: Lightning's precision.
    """

    generator: str
    generator_layers: int
    encoder: str
    num_layers: int | None
    held_out_layers: tuple[int, ...]
    held_out_encoders: tuple[str, ...]
    train_pairs: int
    eval_pairs: int
    start_steps: int
    steps: int
    batch_size: int
    start_learning_rate: float
    learning_rate: float
    accelerator: str
    precision: str

    @property
    def device(self) -> str:
        """Device that generates and scores texts outside of training."""
        return "cuda" if self.accelerator in ("gpu", "cuda") else "cpu"

    def encoders(self) -> dict[str, FrozenEncoder]:
        """Return the encoders to score with; the first is that of the losses."""
        trained = FrozenEncoder(self.encoder, num_layers=self.num_layers)
        others = {f"layer{layer}": FrozenEncoder(self.encoder, num_layers=layer) for layer in self.held_out_layers}
        named = {Path(name).name: FrozenEncoder(name) for name in self.held_out_encoders}
        return {"trained": trained, **others, **named}


class Studied(Summarizer):
    """The demo's summarizer, without a constraint on repetition and with a count of the training tokens."""

    no_repeat_ngram_size = 0

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.tokens = 0
        if isinstance(self.added, Soft):
            self.bertscore_loss = self.added.loss  # the attribute that schedules change

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        self.tokens += int((batch["labels"] >= 0).sum())
        return super().training_step(batch, batch_idx)


def make_module(settings: Settings, arm: Arm | None, start: Path | None, learning_rate: float) -> Studied:
    """Return the module to train.

    Args:
        settings: settings of the study.
        arm: arm with the added loss; ``None``: cross-entropy alone.
        start: file of the initial weights; ``None``: the generator's weights.
        learning_rate: learning rate of AdamW.

    Returns:
        The module.
    """
    quieten()
    torch.manual_seed(0)  # equal new weights in every process
    model, tokenizer = load_generator(settings.generator, settings.generator_layers)
    if not any(parameter.requires_grad for parameter in model.get_encoder().parameters()):
        # Made from an encoder, with a frozen encoder half: freeze the embedding table too, for cheaper steps.
        model.get_output_embeddings().weight.requires_grad_(False)
        model.get_decoder().get_input_embeddings().weight.requires_grad_(False)
    if start is not None:
        load_model(model, start)
    encoder = FrozenEncoder(settings.encoder, num_layers=settings.num_layers)
    added = None if arm is None else arm.loss(encoder, tokenizer)
    weight = 0.0 if arm is None or added is None else added.weight if arm.weight is None else arm.weight
    return Studied(model, tokenizer, encoder, learning_rate, added, weight)


def make_start(settings: Settings, task: Task, path: Path) -> None:
    """Train with cross-entropy and save the weights from which all arms and seeds of a task start.

    Args:
        settings: settings of the study.
        task: task to train on.
        path: safetensors file to write.
    """
    module = make_module(settings, None, None, settings.start_learning_rate)
    _train(module, task.train, settings, settings.start_steps, seed=0, callbacks=[])
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path, "wb") as file:
        save_model(module.model, file.name)


def run_arm(settings: Settings, task: Task, start: Path, arm: Arm, seed: int) -> dict[str, Any]:
    """Train one arm from the start, summarize the held-out texts and measure the summaries.

    Args:
        settings: settings of the study.
        task: task to train on.
        start: file of the shared weights.
        arm: the arm.
        seed: seed of the batch order, dropout and samples.

    Returns:
        Steps, tokens, seconds of training, the measures of every held-out text, and the summaries.
    """
    module = make_module(settings, arm, start, settings.learning_rate)
    callbacks: list[pl.Callback] = []
    if arm.anneal is not None:
        callbacks.append(TemperatureAnnealing(module.bertscore_loss.temperature, arm.anneal, over=settings.steps))
    began = time.perf_counter()
    if settings.steps:
        _train(module, task.train, settings, settings.steps, seed, callbacks)
    seconds = time.perf_counter() - began
    summaries = _summarize(module, task.held_out, settings)
    references = [pair.summary for pair in task.held_out]
    measured: Measured = measure(summaries, references, settings.encoders(), settings.device)
    return {
        "task": task.name,
        "arm": arm.name,
        "seed": seed,
        "steps": settings.steps,
        "target_tokens": module.tokens,
        "seconds": round(seconds, 2),
        "measured": measured,
        "summaries": summaries,
    }


def training_batches(module: Studied, pairs: Sequence[Pair], settings: Settings, seed: int) -> DataLoader[Any]:
    """Return shuffled batches, equal for all arms of a seed.

    Args:
        module: module with the tokenizer.
        pairs: the training pairs.
        settings: settings of the study.
        seed: seed of the order.

    Returns:
        The loader.
    """
    return DataLoader(
        list(enumerate(pairs)),
        settings.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=Collate(module.tokenizer, module.model.config.decoder_start_token_id),
        generator=torch.Generator().manual_seed(seed),
    )


def _train(
    module: Studied, pairs: Sequence[Pair], settings: Settings, steps: int, seed: int, callbacks: list[pl.Callback]
) -> None:
    """Train for a number of steps."""
    pl.seed_everything(seed, verbose=False)
    trainer = pl.Trainer(
        accelerator=settings.accelerator,
        devices=1,
        precision=settings.precision,
        max_steps=steps,
        max_epochs=-1,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, training_batches(module, pairs, settings, seed))


def _summarize(module: Studied, pairs: Sequence[Pair], settings: Settings) -> list[str]:
    """Return greedily generated summaries; batches hold texts of similar length."""
    collate = Collate(module.tokenizer, module.model.config.decoder_start_token_id)
    module.to(settings.device)
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i].document))
    summaries = [""] * len(pairs)
    for first in range(0, len(order), 4 * settings.batch_size):
        numbers = order[first : first + 4 * settings.batch_size]
        batch = collate([(i, pairs[i]) for i in numbers])
        moved = {name: value.to(module.device) if isinstance(value, Tensor) else value for name, value in batch.items()}
        with torch.no_grad():
            for number, text in zip(numbers, module.summarize(moved), strict=True):
                summaries[number] = text
    return summaries
