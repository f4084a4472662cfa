"""The packages that are compared: bert-score, torchmetrics and SacreBLEU."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning.fabric.utilities.warnings import PossibleUserWarning
from torch import Tensor
from torchmetrics import Metric
from transformers.utils import logging as transformers_logging

References = Sequence[str] | Sequence[Sequence[str]]


def silence() -> None:
    """Silence messages of this process that are not errors, of Lightning and transformers."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", PossibleUserWarning)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def load_bert_score(model: str, num_layers: int) -> Callable[[Sequence[str], References], Tensor]:
    """Return bert-score's function from candidates and references to F1, in float32 and batches of 64 texts."""
    from bert_score import BERTScorer

    silence()
    is_folder = Path(model).is_dir()
    # A relative path: bert-score treats a model with "t5" in its name as one of that family.
    with contextlib.chdir(model) if is_folder else contextlib.nullcontext():
        scorer = BERTScorer(model_type="." if is_folder else model, num_layers=num_layers, device="cpu")

    def score(candidates: Sequence[str], references: References) -> Tensor:
        f1: Tensor = scorer.score(candidates, references)[2]
        return f1

    return score


def make_torchmetrics_metric(model: str, num_layers: int, max_length: int) -> Metric:
    """Return torchmetrics' BERTScore, which pads all texts to the maximum length."""
    from torchmetrics.text import BERTScore

    return BERTScore(model, num_layers=num_layers, max_length=max_length, truncation=True)


def load_sacrebleu() -> Callable[[Sequence[str], Sequence[str]], float] | None:
    """Return a function from candidates and references to corpus BLEU; ``None`` if SacreBLEU is not installed."""
    if importlib.util.find_spec("sacrebleu") is None:
        return None
    from sacrebleu import corpus_bleu

    return lambda candidates, references: float(corpus_bleu(candidates, [references]).score)
