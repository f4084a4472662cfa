"""Rules that choose a checkpoint, applied afterwards to the stored checkpoints of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.demos.boring_classes import BoringModel
from scipy.stats import rankdata

from bertscore_tm.callbacks import BERTScoreEarlyStopping
from examples.study.training import LAYER

BASELINE, LARGEST_F1, LAST, BEST = "smallest val_loss", "largest val F1", "last", "best possible"
PATIENCES = range(1, 11)
# Numbers of validation texts, and how often each is drawn from those of a run.
SUBSETS, DRAWS = (10, 20, 40, 80, 160), 20

# Index of the chosen checkpoint, and of the last one that is trained to.
Choice = Sequence[int]


def apply_rules(run: Mapping[str, Any], num_draws: int = DRAWS) -> dict[str, list[Choice]]:
    """Return the choices of every rule; those that draw validation texts have one for each draw."""
    checkpoints = run["checkpoints"]
    last = len(checkpoints) - 1
    losses = -np.array([one["val_loss"] for one in checkpoints])
    f1 = np.array([one["f1"] for one in checkpoints])
    scores = {
        LARGEST_F1: f1.mean(1),
        "largest val ROUGE-L": np.array([fmean(one["validation"]["rougeL"]) for one in checkpoints]),
        "largest val BLEU": np.array([one["validation"]["bleu"] for one in checkpoints]),
    }
    scores["largest mean rank"] = np.mean([rankdata(values) for values in scores.values()], 0)
    scores[BEST] = np.array([fmean(one["test"][f"layer{LAYER}"]) for one in checkpoints])
    choices = {name: [[int(values.argmax()), last]] for name, values in ({BASELINE: losses} | scores).items()}
    choices[LAST] = [[last, last]]
    for patience in PATIENCES:
        for kind, values in (("val_loss", losses), ("F1", scores[LARGEST_F1])):
            name, stop = f"early stopping on {kind}, patience {patience}", replay(run, kind, patience)
            choices[name] = [[int(values[: stop + 1].argmax()), stop]]
            choices[f"{name}, weights at the stop"] = [[stop, stop]]
    draw = np.random.default_rng(0)
    for count in SUBSETS:
        subsets = [draw.choice(f1.shape[1], min(count, f1.shape[1]), replace=False) for _ in range(num_draws)]
        choices[f"F1 of {count} texts"] = [[int(f1[:, one].mean(1).argmax()), last] for one in subsets]
    return choices


def replay(run: Mapping[str, Any], kind: str, patience: int) -> int:
    """Return the checkpoint at which Lightning's early stopping on the loss, or ours on F1, ends the run."""
    if kind == "F1":
        early_stopping: EarlyStopping = BERTScoreEarlyStopping(patience=patience)
    else:
        early_stopping = EarlyStopping("val_loss", patience=patience, check_on_train_epoch_end=False)
    names = ("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar", "num_sanity_val_steps")
    limits = {"max_epochs": len(run["checkpoints"]), "limit_train_batches": 1, "limit_val_batches": 1}
    trainer = Trainer(accelerator="cpu", callbacks=[early_stopping], **limits, **dict.fromkeys(names, False))
    trainer.fit(_Replay(run))
    return trainer.current_epoch - 1


class _Replay(BoringModel):
    """Log loss and score of one stored checkpoint per epoch."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        super().__init__()
        self.checkpoints = run["checkpoints"]

    def validation_step(self, *batch: Any) -> None:
        one = self.checkpoints[self.current_epoch]
        self.log_dict({"val_loss": one["val_loss"], "val_bertscore_f1": fmean(one["f1"])})
