"""Gradient steps on free logits bring a damaged text back: what the loss improves is the metric's score."""

import pytest
import torch

from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.soft_predictions import content_ids, padded
from tests.support.texts import real_pairs

COUNT, LENGTHS, STEPS = 6, range(6, 11), 30
# The token of the text has a probability of 0.42 in MiniLM's vocabulary, all others the same.
CERTAINTY = 10.0


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_recovers_damaged_sentences(encoder):
    """A third of each sentence's tokens is replaced by whole words at random."""
    tokenizer = encoder.tokenizer.tokenizer
    # Short sentences, since what takes time is positions times vocabulary.
    distinct = list(dict.fromkeys(real_pairs(240)[0]))
    rows = zip(distinct, content_ids(encoder, distinct), strict=True)
    sentences, ids = zip(*[(text, row) for text, row in rows if len(row) in LENGTHS][:COUNT], strict=True)
    labels = padded(ids)
    content, damaged = labels >= 0, labels.clamp(min=0)
    random = torch.Generator().manual_seed(0)
    words = torch.tensor(sorted(i for token, i in tokenizer.get_vocab().items() if token.isalpha()))
    for row, length in zip(damaged, content.sum(1).tolist(), strict=True):
        places = torch.randperm(length, generator=random)[: -(-length // 3)]
        row[places] = words[torch.randint(len(words), places.shape, generator=random)]
    logits = torch.zeros(*labels.shape, len(tokenizer)).scatter_(-1, damaged[..., None], CERTAINTY).requires_grad_()

    def decoded_f1():
        """The metric's mean F1 of the likeliest tokens, written out as text."""
        likeliest = logits.detach().clone()
        likeliest[..., tokenizer.all_special_ids] = -torch.inf
        found = zip(likeliest.argmax(-1), content, strict=True)
        return bert_score([tokenizer.decode(row[kept]) for row, kept in found], sentences, encoder)["f1"].mean().item()

    loss, before = SoftBERTScoreLoss(encoder, reduction="sum"), decoded_f1()
    optimizer = torch.optim.Adam([logits], lr=1.0, eps=1e-12, fused=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(logits, labels).backward()
        optimizer.step()
    assert before < 0.75
    # The rest is mostly order, which greedy matching does not penalize: words have changed places.
    assert (decoded_f1() - before) / (1 - before) > 0.68
