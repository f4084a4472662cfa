"""Rules that choose a checkpoint, applied afterwards to the stored checkpoints of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.callbacks import Callback, EarlyStopping
from scipy.stats import rankdata
from torch.utils.data import DataLoader

from bertscore_tm.callbacks import BERTScoreCallback, BERTScoreEarlyStopping
from examples.study.training import LAYER, make_metric

BASELINE, LARGEST_F1, LAST, BEST = "smallest val_loss", "largest val F1", "last", "best possible"
PATIENCES = range(1, 11)
SUBSETS, DRAWS = (10, 20, 40, 80, 160), 20
"""Numbers of validation texts, and how often each is drawn from those of a run."""


class Choice(NamedTuple):
    """Index of the chosen checkpoint, and of the last one that is trained to."""

    checkpoint: int
    stop: int


def apply_rules(run: Mapping[str, Any], num_draws: int = DRAWS) -> dict[str, list[Choice]]:
    """Return the choices of every rule; those that draw validation texts have one for each draw."""
    checkpoints = run["checkpoints"]
    last = len(checkpoints) - 1
    losses = [mean_loss(one) for one in checkpoints]
    f1 = np.array([one["f1"] for one in checkpoints])
    scores = {
        "largest val F1": f1.mean(1),
        "largest val ROUGE-L": np.array([fmean(one["rougeL"]) for one in checkpoints]),
        "largest val BLEU": np.array([one["bleu"] for one in checkpoints]),
    }
    scores["largest mean rank"] = np.mean([rankdata(values) for values in scores.values()], 0)
    scores[BEST] = np.array([fmean(one["test"][f"layer{LAYER}"]) for one in checkpoints])
    choices = {BASELINE: [Choice(int(np.argmin(losses)), last)], LAST: [Choice(last, last)]}
    choices |= {name: [Choice(int(values.argmax()), last)] for name, values in scores.items()}
    for name, stop in replay_early_stopping(run).items():
        values = -np.array(losses) if "loss" in name else scores[LARGEST_F1]
        choices[name] = [Choice(int(values[: stop + 1].argmax()), stop)]
        choices[f"{name}, weights at the stop"] = [Choice(stop, stop)]
    draw = np.random.default_rng(0)
    for count in SUBSETS:
        subsets = [draw.choice(f1.shape[1], min(count, f1.shape[1]), replace=False) for _ in range(num_draws)]
        choices[f"F1 of {count} texts"] = [Choice(int(f1[:, one].mean(1).argmax()), last) for one in subsets]
    return choices


def mean_loss(checkpoint: Mapping[str, Any]) -> float:
    """Return the cross-entropy per token of the validation texts."""
    sums, counts = zip(*checkpoint["losses"], strict=True)
    return float(sum(sums) / sum(counts))


def replay_early_stopping(run: Mapping[str, Any]) -> dict[str, int]:
    """Return the checkpoint at which early stopping ends the run, for Lightning's callback on the loss and ours on F1.

    A Trainer gets the stored losses and texts, one checkpoint per epoch, and the callbacks score the texts.
    """
    stopping: dict[str, EarlyStopping] = {}
    for patience in PATIENCES:
        stopping[f"early stopping on val_loss, patience {patience}"] = EarlyStopping(
            "val_loss", patience=patience, check_on_train_epoch_end=False
        )
        stopping[f"early stopping on F1, patience {patience}"] = BERTScoreEarlyStopping(patience=patience)
    panel = _Panel(stopping)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=len(run["checkpoints"]),
        num_sanity_val_steps=0,
        callbacks=[BERTScoreCallback(make_metric(LAYER).clone()), panel],
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False),
    )
    trainer.fit(_Replay(run), DataLoader([0]), DataLoader([0]))
    return {name: panel.stops.get(name, len(run["checkpoints"]) - 1) for name in stopping}


class _Replay(pl.LightningModule):
    """Log the loss and return the texts of one stored checkpoint per epoch."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.checkpoints: Sequence[Any] = run["checkpoints"]
        self.references: list[str] = run["references"]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Train nothing."""

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, list[str]]:
        """Validate the checkpoint of the epoch."""
        one = self.checkpoints[self.current_epoch]
        self.log("val_loss", mean_loss(one))
        return {"preds": one["texts"], "target": self.references}

    def configure_optimizers(self) -> None:
        """Train nothing."""


class _Panel(Callback):
    """Ask several early-stopping callbacks in one run, and note when each would have stopped it."""

    def __init__(self, stopping: Mapping[str, EarlyStopping]) -> None:
        self.stopping, self.stops = stopping, dict[str, int]()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Set up the callbacks."""
        for one in self.stopping.values():
            one.setup(trainer, pl_module, stage)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ask every callback that has not stopped yet."""
        for name, one in self.stopping.items():
            if name not in self.stops:
                one.on_validation_end(trainer, pl_module)
                if trainer.should_stop:
                    self.stops[name] = trainer.current_epoch
                    trainer.should_stop = False
