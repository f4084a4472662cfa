"""Warnings point to the user's line, through frames of the package, torch and torchmetrics."""

import pytest
import torch

from bertscore_tm import BERTScore, FrozenEncoder, bert_score
from bertscore_tm.losses import SoftBERTScoreLoss


@pytest.mark.parametrize("name", ["function", "update", "forward", "loss"])
def test_warnings_point_to_the_users_line(name, minilm):
    encoder = FrozenEncoder(minilm, num_layers=1, max_length=6)
    metric = BERTScore(encoder)
    loss = SoftBERTScoreLoss(encoder)
    logits = torch.zeros(1, 2, encoder.tokenizer.vocab_size)
    long = ["a cat sat on the mat today</s>"]
    calls = {
        "function": lambda: bert_score(long, long, encoder),
        "update": lambda: metric.update(long, long),
        "forward": lambda: metric(long, long),
        "loss": lambda: loss(logits, long, torch.ones(1, 2)),
    }

    with pytest.warns(UserWarning, match="special tokens|longer than 6 tokens") as caught:
        calls[name]()

    assert {warning.filename for warning in caught} == {__file__}
