"""Scores of the reference package."""

from collections.abc import Iterable, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import bert_score
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast


def oracle_scores(
    model: str,
    candidates: Sequence[str],
    references: Sequence[Any],
    num_layers: int,
    *,
    idf: bool | Sequence[str] = False,
    table: Any = None,
    all_layers: bool = False,
) -> Tensor:
    """Return precision, recall and F1, shape (3, [layers,] pairs).

    Each pair is scored in a batch of its own, as that package lets padding take part in the matching.

    Args:
        idf: weights of the references, if it is True, or of these texts.
        table: file of the baseline by which scores are rescaled.
    """
    has_weights = bool(idf)
    # A copy, because the scorer keeps its first token weights.
    scorer = copy(load_scorer(model, num_layers, all_layers, table, has_weights))
    if has_weights:
        documents = flat(references) if idf is True else idf
        scorer.compute_idf(documents)
    return torch.stack(scorer.score(candidates, references, batch_size=1))


@lru_cache(maxsize=4)
def load_scorer(model: str, num_layers: int, all_layers: bool, table: Any, has_weights: bool) -> bert_score.BERTScorer:
    """Return a scorer without token weights; it is cached, because loading takes longer than scoring a few pairs."""
    settings = {"num_layers": num_layers, "all_layers": all_layers, "idf": has_weights}
    settings |= {"lang": "en", "nthreads": 0, "device": "cpu"}
    if table is not None:
        settings |= {"rescale_with_baseline": True, "baseline_path": str(table)}
    return bert_score.BERTScorer(model, **settings)


def flat(references: Iterable[Any]) -> list[str]:
    """Return all references, of candidates with one or several."""
    texts: list[str] = []
    for entry in references:
        texts += [entry] if isinstance(entry, str) else entry
    return texts


def take_empty_texts(monkeypatch: Any) -> None:
    """Give tokenizers a method that the package calls for empty texts and that recent ones lack."""

    def add_special_tokens(self: Any, ids: list[int]) -> list[int]:
        return [self.cls_token_id, *ids, self.sep_token_id]

    monkeypatch.setattr(PreTrainedTokenizerFast, "build_inputs_with_special_tokens", add_special_tokens, raising=False)
