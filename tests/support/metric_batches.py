"""Small batches, and what the function makes of them."""

from __future__ import annotations

import torch
from torch import Tensor

from bertscore_tm import BERTScore, FrozenEncoder
from bertscore_tm.functional import SCORES, bert_score

TOLERANCE = 1e-6
FIRST = (["a cat sat on the mat", "good morning"], ["the cat sat on a mat", "hello there"])
SECOND = (["it rains in Paris"], ["rain falls on the capital of France"])
THIRD = (["the train was late", "nobody came"], [["the train came late", "a delayed train"], ["no one showed up"]])


def assert_equal(scores: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    assert scores.keys() == expected.keys()
    for name in SCORES:
        assert scores[name].shape == expected[name].shape
        torch.testing.assert_close(scores[name], expected[name], rtol=0, atol=tolerance)


def mean(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double().mean(-1).float() for name, value in scores.items()}


def updated(metric: BERTScore, *batches: tuple) -> BERTScore:
    for batch in batches:
        metric.update(*batch)
    return metric


def per_pair(encoder: FrozenEncoder, *batches: tuple, **settings) -> dict[str, Tensor]:
    """The function's scores of all batches together."""
    preds = [text for batch in batches for text in batch[0]]
    target = [[texts] if isinstance(texts, str) else texts for batch in batches for texts in batch[1]]
    return bert_score(preds, target, encoder, **settings)
