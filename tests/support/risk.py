"""BERTScoreRisk for a tiny generator of words, and a training step with it."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from bertscore_tm.losses import BERTScoreRisk
from tests.losses.sequence.test_sampling import END, make_model
from tests.support.models import tiny_tokenizer
from tests.support.soft_predictions import tiny

REFERENCES = ["a cat sat", ["hello", "hi there"], ["it rains today"]]


class Words:
    """A tokenizer for a tiny generator: the ids of the references, and words for what it samples."""

    ids: ClassVar = {"a cat sat": [5, 6], "hello": [7, 8, 9], "it rains today": [10]}

    def batch_decode(self, ids, skip_special_tokens):
        return [" ".join(f"word{i}" for i in row if i > 4) for row in ids]

    eos_token_id = END

    def __call__(self, text=None, text_target=None, add_special_tokens=True):
        ids = self.ids[text or text_target]
        return {"input_ids": [3, *ids, END] if add_special_tokens else ids}


def make_risk(**options: Any) -> BERTScoreRisk:
    """Return a risk for the tiny generator of words."""
    encoder, tokenizer = tiny("bert", "float32"), tiny_tokenizer("wordpiece")
    risk = BERTScoreRisk(encoder, tokenizer, **{"max_new_tokens": 5, **options})
    risk.tokenizer = Words()
    return risk


class RiskStep(torch.nn.Module):
    """Cross-entropy and risk, in a training step that DDP wraps."""

    def __init__(self, risk: BERTScoreRisk) -> None:
        super().__init__()
        self.model = make_model("t5")
        self.risk = risk

    def forward(self, inputs: dict[str, Tensor], references: list[Any]) -> Tensor:
        ids = inputs["input_ids"]
        cross_entropy = self.model(**inputs, decoder_input_ids=ids, labels=ids).loss
        return cross_entropy + self.risk(self.model, inputs, references)
