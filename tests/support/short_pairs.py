"""Short real pairs, and what tests of the metric's options do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bertscore_tm import BERTScore
from bertscore_tm.functional import SCORES
from tests.support.texts import real_pairs, several_references

TOLERANCE = 1e-6
LAYERS = 2
VOCABULARY = 30522
COUNT = 8
# Real texts, cut short.
PREDS, TARGET = ([" ".join(text.split()[:9]) for text in side] for side in real_pairs(COUNT))
SEVERAL = several_references(TARGET)
# A corpus that is not the references, with documents that come twice.
CORPUS = [*PREDS[:5], *TARGET[4:], *TARGET[4:6]]
INTERVAL = ("f1_low", "f1_high")
# One pair at a time, since the reference package lets padding take part in the matching.
ONE = {"batch_size": 1, "nthreads": 0, "device": "cpu"}


@cache
def weights() -> dict[int, float]:
    """Weights that no corpus gives, for every id, special ones too; many are 0."""
    return {token: (token * 37 % 11) / 4 for token in range(VOCABULARY)}


def updated(metric: BERTScore, preds: Sequence[str] = PREDS, target: Sequence[Any] = TARGET) -> BERTScore:
    """A metric with pairs in batches of three."""
    for start in range(0, len(preds), 3):
        metric.update(preds[start : start + 3], target[start : start + 3])
    return metric


def stacked(found: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([found[name] for name in SCORES])


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted.float(), rtol=0, atol=tolerance)


def mean(scores: Tensor) -> Tensor:
    return scores.double().mean(-1).float()


def baseline(folder: Any) -> str:
    """A table in which all numbers differ."""
    path = folder / "table.csv"
    rows = [f"{layer},{0.1 + layer / 20},{0.2 + layer / 25},{0.15 + layer / 30}" for layer in range(7)]
    path.write_text("\n".join(["LAYER,P,R,F", *rows]))
    return str(path)
