"""A training step of a small generator with the loss, compared with cross-entropy alone."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from bertscore_tm.losses import SoftBERTScoreLoss
from examples.benchmarks.encoders import packaged_model
from examples.benchmarks.options import Options, flat_texts
from examples.benchmarks.rounds import Figure, in_turn, ratios
from examples.benchmarks.small_generator import Task, encoder_of_texts, make_generator

__all__ = ["STEP_RATIO", "measure_small_steps"]

STEP_RATIO = 3.0

_LAYERS = (1, 3, 5)
_BATCH_SIZE = 64
_TEXTS = 1000


def measure_small_steps(options: Options) -> list[Figure]:
    """Measure a step of 64 short texts with the packaged encoder, at several of its layers.

    The generator has 128 dimensions, two encoder and two decoder layers, and the vocabulary of the texts. A step is
    forward and backward pass, clipping and AdamW; the loss is added from logits and labels, with its defaults.

    Args:
        options: settings; their 1,000 shortest texts are the vocabulary, and every 16th of them is in the batch.

    Returns:
        The time with the loss, from the second epoch on, as a ratio to cross-entropy alone; at layer 3 also in the
        first epoch, in which the labels are encoded too.
    """
    torch.set_num_threads(options.threads)
    lines = sorted({text.lower() for text in flat_texts(options.texts)}, key=lambda text: (len(text), text))[:_TEXTS]
    encoders = {layer: encoder_of_texts(packaged_model(), lines, layer) for layer in _LAYERS}
    task = Task(encoders[_LAYERS[0]], lines, [], frozenset())
    batch = task.collate(lines[len(lines) * i // _BATCH_SIZE] for i in range(_BATCH_SIZE))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make_generator(task.encoder).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

        def step(loss: SoftBERTScoreLoss | None) -> None:
            output = model(**batch.inputs, labels=batch.labels)
            total = output.loss if loss is None else output.loss + loss(output.logits, batch.labels)
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        losses = {f"layer {layer}": SoftBERTScoreLoss(encoder) for layer, encoder in encoders.items()}
        losses["layer 3, first epoch"] = SoftBERTScoreLoss(encoders[3], cache_bytes=0)
        steps = {name: partial(step, loss) for name, loss in losses.items()}
        seconds = in_turn({"cross-entropy": partial(step, None), **steps}, options.rounds)
    title = "training step of a small generator, {}: with the loss by cross-entropy alone"
    found = {title.format(name): ratios(seconds[name], seconds["cross-entropy"]) for name in losses}
    return [Figure(name, values, "times", STEP_RATIO, at_most=True) for name, values in found.items()]
