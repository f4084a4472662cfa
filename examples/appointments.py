"""Task of the demo: German sentences about appointments, each with six English translations, made by rule.

The translations differ in wording and word order, so cross-entropy alone does not tell which one says it best.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import lightning.pytorch as pl
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

__all__ = ["Appointment", "Translator", "collate", "make_appointments", "make_generator", "make_tokenizer"]

EVENTS = {
    "Wir treffen uns {}.": ("We meet {}.", "Our meeting is {}.", "We are going to meet {}."),
    "Der Unterricht beginnt {}.": ("The lesson starts {}.", "Classes begin {}.", "School starts {}."),
    "Mein Zug fährt {} ab.": ("My train leaves {}.", "My train departs {}.", "I have a train to catch {}."),
    "Meine Schwester kommt {} an.": ("My sister arrives {}.", "My sister gets here {}.", "My sister will be here {}."),
    "Das Konzert findet {} statt.": ("The concert takes place {}.", "The concert is {}.", "There is a concert {}."),
    "Der Laden öffnet {}.": ("The shop opens {}.", "The store opens {}.", "The shop opens its doors {}."),
    "Ich rufe dich {} an.": ("I will call you {}.", "I will phone you {}.", "You will hear from me {}."),
    "Wir essen {} zu Abend.": ("We have dinner {}.", "Dinner is {}.", "We eat dinner {}."),
}
DAYS = {"Montag": "Monday", "Dienstag": "Tuesday", "Mittwoch": "Wednesday", "Donnerstag": "Thursday"}
DAYS |= {"Freitag": "Friday", "Samstag": "Saturday", "Sonntag": "Sunday"}
TIMES = {"um": "at", "gegen": "around", "kurz vor": "shortly before", "kurz nach": "shortly after"}
HOURS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
HOURS |= {"sieben": "seven", "acht": "eight", "neun": "nine", "zehn": "ten", "elf": "eleven", "zwölf": "twelve"}


@dataclass(frozen=True)
class Appointment:
    """A sentence to translate.

    Args:
        source: the German sentence.
        target: one of its translations, drawn at random, to train on or to score with.
        references: all translations.
    """

    source: str
    target: str
    references: list[str]


def make_appointments() -> list[Appointment]:
    """Return 2,688 appointments in random order, the same at every call.

    Returns:
        The appointments; the target of each is one of its references, drawn at random.
    """
    draw = random.Random(0)
    appointments = []
    for (german, english), (tag, day), (um, at), (stunde, hour) in product(
        EVENTS.items(), DAYS.items(), TIMES.items(), HOURS.items()
    ):
        times = f"on {day} {at} {hour}", f"{at} {hour} on {day}"
        references = [sentence.format(time) for sentence, time in product(english, times)]
        source = german.format(f"am {tag} {um} {stunde}")
        appointments.append(Appointment(source, draw.choice(references), references))
    draw.shuffle(appointments)
    return appointments


def make_tokenizer(appointments: Sequence[Appointment]) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with a token for each word; the fewer tokens, the faster sampling is.

    Args:
        appointments: the sentences.

    Returns:
        The tokenizer, of about 500 tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["[PAD]", "[CLS]", "[SEP]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator((text for one in appointments for text in (one.source, *one.references)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[(token, specials.index(token)) for token in specials[1:]]
    )
    roles = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def make_generator(tokenizer: Any) -> T5ForConditionalGeneration:
    """Return a sequence-to-sequence model with random weights; yours is AutoModelForSeq2SeqLM.from_pretrained(...).

    Args:
        tokenizer: its tokenizer.

    Returns:
        A T5 of two layers, 128 wide.
    """
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id}
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.cls_token_id, **ids, **sizes)
    )


def collate(tokenizer: Any, appointments: Sequence[Appointment]) -> dict[str, Any]:
    """Return a batch: tokenized sources, labels of the targets, and the targets.

    Args:
        tokenizer: the generator's tokenizer.
        appointments: the examples.

    Returns:
        The batch.
    """
    inputs = tokenizer([one.source for one in appointments], padding=True, return_tensors="pt")
    targets = tokenizer([one.target for one in appointments], padding=True, return_tensors="pt")
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)[:, 1:]  # decoding starts with [CLS]
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "labels": labels.contiguous(),
        "target": [one.target for one in appointments],
    }


class Translator(pl.LightningModule):
    """A generator trained with cross-entropy; it holds no metric, which the callback brings.

    Args:
        model: the generator.
        learning_rate: learning rate of AdamW, which falls linearly to 0.
        steps: number of steps over which it falls. Default: it stays constant.
    """

    def __init__(self, model: T5ForConditionalGeneration, learning_rate: float, steps: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.learning_rate = learning_rate
        self.steps = steps

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch."""
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
        loss: Tensor = self.model(**inputs).loss
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Leave generation and scores to the callback."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        if self.steps is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
