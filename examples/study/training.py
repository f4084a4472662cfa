"""Training of the checkpoints, and of the arms that continue from them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import Candidates, DistilledDataset, DistilledTargets, SoftBERTScoreLoss
from examples.benchmarks.rounds import in_turn
from examples.docstring_training import evaluating
from examples.study.arms import Arm
from examples.study.generator import Collate, Example, Generator
from examples.study.measures import measure

__all__ = [
    "Epoch",
    "Settings",
    "make_loss",
    "random_targets",
    "rate_factor",
    "replaced",
    "seconds_per_step",
    "train",
    "train_to_plateau",
]

_FIDELITY_TEXTS = 64

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """Settings that all runs of a study share.

    Args:
        encoder: name or folder of the scoring encoder, from which the generator is made too.
        layer: layer of the losses and of the choice of candidates.
        held_out_layers: layers to compare on.
        encoder_layers: layers of the generator's encoding half.
        decoder_layers: layers of its decoding half.
        train_pairs: number of training pairs; 0 for all.
        held_out_pairs: number of held-out pairs.
        batch_size: pairs per step.
        start_learning_rate: learning rate of the checkpoints.
        max_epochs: largest number of epochs of a checkpoint.
        patience: epochs without improvement on validation pairs that end the training of a checkpoint.
        arm_pairs: number of training pairs that the arms continue on, the first ones; 0 for all.
        steps: steps of each arm.
        learning_rate: learning rate of the arms, which falls linearly to 0.
        warmup: steps in which the learning rate rises.
        num_candidates: samples per training input.
        probability: probability with which a reference is replaced.
    """

    encoder: str
    layer: int
    held_out_layers: tuple[int, ...]
    encoder_layers: int
    decoder_layers: int
    train_pairs: int
    held_out_pairs: int
    batch_size: int
    start_learning_rate: float
    max_epochs: int
    patience: int
    arm_pairs: int
    steps: int
    learning_rate: float
    warmup: int
    num_candidates: int
    probability: float


@dataclass(frozen=True)
class Epoch:
    """What the validation pairs show after an epoch.

    Args:
        cross_entropy: mean cross-entropy of the references' tokens.
        f1: mean BERTScore F1 of the decoded summaries at the last held-out layer.
        rouge: mean ROUGE-L of the decoded summaries.
    """

    cross_entropy: float
    f1: float
    rouge: float


def train_to_plateau(
    generator: Generator,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: Settings,
    seed: int,
    keep: Callable[[], None],
) -> list[Epoch]:
    """Train with cross-entropy at a constant rate, until decoded validation texts and cross-entropy stop improving.

    Args:
        generator: the untrained generator.
        examples: training examples.
        validation: validation examples.
        settings: settings of the study.
        seed: seed of the order and of dropout.
        keep: called after each epoch with a higher F1 than all before, to save the weights.

    Returns:
        The curve of the epochs.
    """
    torch.manual_seed(seed)
    encoder = FrozenEncoder(settings.encoder, num_layers=settings.held_out_layers[-1], all_layers=True)
    optimizer = _optimizer(generator, settings.start_learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / settings.warmup))
    step = _step_function(generator, None, optimizer)
    curve: list[Epoch] = []
    for epoch in range(settings.max_epochs):
        for batch in _loader(generator, examples, settings, seed + epoch):
            step(batch)
            schedule.step()
        curve.append(_validate(generator, validation, encoder, settings))
        if curve[-1].f1 == max(one.f1 for one in curve):
            keep()
        print(f"checkpoint {seed}, epoch {epoch + 1}: {asdict(curve[-1])}", flush=True)
        earlier, last = curve[: -settings.patience], curve[-settings.patience :]
        if earlier and not any(
            one.f1 > max(before.f1 for before in earlier)
            or one.cross_entropy < min(before.cross_entropy for before in earlier)
            for one in last
        ):
            break
    return curve


def make_loss(arm: Arm, generator: Generator, settings: Settings, examples: Sequence[Example]) -> Loss | None:
    """Return the loss that an arm adds to cross-entropy.

    Args:
        arm: the arm.
        generator: the trained generator.
        settings: settings of the study.
        examples: training examples, whose first summaries check the mapping between the vocabularies.

    Returns:
        The loss of logits and labels; ``None``: none.
    """
    if arm.soft is None:
        return None
    encoder = FrozenEncoder(settings.encoder, num_layers=settings.layer)
    return SoftBERTScoreLoss(
        encoder,
        generator_tokenizer=generator.tokenizer,
        fidelity_texts=[summary for _, summary in examples[:_FIDELITY_TEXTS]],
        **arm.soft,
    )


def random_targets(best: DistilledTargets, candidates: Sequence[Candidates], seed: int) -> list[str | None]:
    """Draw a candidate for each example that has a best one.

    Args:
        best: the best candidates.
        candidates: the candidates of each example.
        seed: seed of the draw.

    Returns:
        A candidate, or ``None`` where there is no best one.
    """
    draw = random.Random(seed)
    drawn = [draw.choice(one.candidates) if one.candidates else None for one in candidates]
    return [None if target is None else text for target, text in zip(best.targets, drawn, strict=True)]


def replaced(
    examples: Sequence[Example], targets: Sequence[str | None], settings: Settings, seed: int
) -> Dataset[Example]:
    """Return examples of which some have another target.

    Args:
        examples: the examples.
        targets: the targets; ``None`` keeps the reference.
        settings: settings of the study.
        seed: seed of the draws.

    Returns:
        The data set.
    """
    return DistilledDataset(
        list(examples), targets, lambda one, text: (one[0], text), probability=settings.probability, seed=seed
    )


def rate_factor(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: it rises linearly, then falls linearly to 0 after the last step.

    Args:
        step: number of the step, from 0.
        steps: number of all steps.
        warmup: steps in which the rate rises.

    Returns:
        The factor, at most 1.

    Example:
        >>> [rate_factor(step, steps=5, warmup=2) for step in range(6)]
        [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return min((step + 1) / warmup, (steps - step) / (steps - warmup + 1))


def train(
    generator: Generator,
    examples: Sequence[Example] | Dataset[Example],
    loss: Loss | None,
    settings: Settings,
    steps: int,
    seed: int,
) -> float:
    """Train for a number of steps, with a learning rate that falls to 0.

    Args:
        generator: the generator.
        examples: training examples; the order depends on the seed only.
        loss: loss that is added to cross-entropy with weight 1.
        settings: settings of the study.
        steps: number of steps.
        seed: seed of the order and of dropout.

    Returns:
        Seconds of training.
    """
    torch.manual_seed(seed)
    optimizer = _optimizer(generator, settings.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_factor, steps=steps, warmup=settings.warmup))
    step = _step_function(generator, loss, optimizer)
    batches = _endless(_loader(generator, examples, settings, seed))
    began = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
        schedule.step()
    return time.perf_counter() - began


def seconds_per_step(
    generator: Generator,
    examples: Sequence[Example],
    losses: Mapping[str, Loss | None],
    settings: Settings,
    rounds: int,
) -> dict[str, float]:
    """Time a step with each of several losses, in turn.

    Args:
        generator: the generator.
        examples: training examples.
        losses: the losses by the name of their arm.
        settings: settings of the study.
        rounds: number of timed steps of each.

    Returns:
        Median seconds of a step by arm.
    """
    batch = next(iter(_loader(generator, examples, settings, seed=0)))
    optimizer = _optimizer(generator, 0.0)
    steps = {name: partial(_step_function(generator, loss, optimizer), batch) for name, loss in losses.items()}
    return {name: median(seconds) for name, seconds in in_turn(steps, rounds).items()}


def _step_function(
    generator: Generator, loss: Loss | None, optimizer: torch.optim.Optimizer
) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that trains on a batch."""
    trained = [parameter for parameter in generator.model.parameters() if parameter.requires_grad]
    generator.model.train()

    def step(batch: Mapping[str, Any]) -> None:
        output = generator.model(**batch)
        total = output.loss if loss is None else output.loss + loss(output.logits, batch["labels"])
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    return step


def _optimizer(generator: Generator, learning_rate: float) -> torch.optim.Optimizer:
    trained = [parameter for parameter in generator.model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=learning_rate)


def _loader(generator: Generator, examples: Any, settings: Settings, seed: int) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(seed)
    collate = Collate(generator.tokenizer)
    return DataLoader(examples, settings.batch_size, shuffle=True, drop_last=True, collate_fn=collate, generator=order)


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


@torch.no_grad()
def _validate(generator: Generator, validation: Sequence[Example], encoder: FrozenEncoder, settings: Settings) -> Epoch:
    collate = Collate(generator.tokenizer)
    losses = []
    with evaluating(generator.model):
        for first in range(0, len(validation), settings.batch_size):
            losses.append(generator.model(**collate(validation[first : first + settings.batch_size])).loss.item())
    states, references = zip(*validation, strict=True)
    layer = settings.held_out_layers[-1]
    found = measure(generator.summarize(states), references, encoder, [layer])
    return Epoch(fmean(losses), fmean(found[f"layer{layer}_f1"]), fmean(found["rougeL"]))
