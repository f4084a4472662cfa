"""Rules that choose a checkpoint, applied afterwards to the stored checkpoints of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from examples.research.study.training import LAYER

BASELINE, LARGEST_F1, LAST, BEST = "smallest val_loss", "largest val F1", "last", "best possible"
PATIENCES = range(1, 11)
# Numbers of validation texts, and how often each is drawn from those of a run.
SUBSETS, DRAWS = (10, 20, 40, 80, 160), 20

# Index of the chosen checkpoint, and of the last one that is trained to.
Choice = Sequence[int]


def apply_rules(run: Mapping[str, Any]) -> dict[str, list[Choice]]:
    """Return the choices of every rule; those that draw validation texts have one for each draw."""
    checkpoints = run["checkpoints"]
    last = len(checkpoints) - 1
    losses = -np.array([checkpoint["val_loss"] for checkpoint in checkpoints])
    f1 = np.array([checkpoint["f1"] for checkpoint in checkpoints])
    scores = {
        LARGEST_F1: f1.mean(1),
        "largest val ROUGE-L": np.array([fmean(checkpoint["validation"]["rougeL"]) for checkpoint in checkpoints]),
        "largest val BLEU": np.array([checkpoint["validation"]["bleu"] for checkpoint in checkpoints]),
    }
    scores["largest mean rank"] = np.mean([rankdata(values) for values in scores.values()], 0)
    scores[BEST] = np.array([fmean(checkpoint["test"][f"layer{LAYER}"]) for checkpoint in checkpoints])
    choices = {name: [[int(values.argmax()), last]] for name, values in ({BASELINE: losses} | scores).items()}
    choices[LAST] = [[last, last]]
    for patience in PATIENCES:
        for kind, values in (("val_loss", losses), ("F1", scores[LARGEST_F1])):
            name, stop = f"early stopping on {kind}, patience {patience}", stop_early(values, patience)
            choices[name] = [[int(values[: stop + 1].argmax()), stop]]
            choices[f"{name}, weights at the stop"] = [[stop, stop]]
    draw = np.random.default_rng(0)
    for count in SUBSETS:
        subsets = [draw.choice(f1.shape[1], min(count, f1.shape[1]), replace=False) for _ in range(DRAWS)]
        choices[f"F1 of {count} texts"] = [[int(f1[:, texts].mean(1).argmax()), last] for texts in subsets]
    return choices


def stop_early(values: NDArray[np.float64], patience: int) -> int:
    """Return the last checkpoint that early stopping trains to: that many checkpoints do not exceed the best one."""
    best = 0
    for i in range(1, len(values)):
        best = i if values[i] > values[best] else best
        if i - best == patience:
            return i
    return len(values) - 1
