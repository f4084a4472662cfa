"""Gradient steps on free logits bring a damaged text back: what the loss improves is the metric's score."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer

from bertscore_tm.functional import bert_score
from bertscore_tm.losses import SoftBERTScoreLoss
from tests.support.texts import real_pairs

SEED = 0
COUNT, LENGTHS, STEPS = 6, range(6, 11), 30
# The token of the text has a probability of 0.42 in MiniLM's vocabulary, all others the same.
CERTAINTY = 10.0


@dataclass(frozen=True)
class Texts:
    """Sentences as labels, with -100 after their ends."""

    sentences: list[str]
    labels: Tensor

    @property
    def content(self) -> Tensor:
        return self.labels >= 0


def short_sentences(tokenizer) -> Texts:
    """Real sentences, short ones, since what takes time is positions times vocabulary."""
    distinct = list(dict.fromkeys(real_pairs(240)[0]))
    rows = tokenizer(distinct, add_special_tokens=False)["input_ids"]
    kept = [(text, row) for text, row in zip(distinct, rows, strict=True) if len(row) in LENGTHS][:COUNT]
    assert len(kept) == COUNT
    labels = pad_sequence([torch.tensor(row) for _, row in kept], batch_first=True, padding_value=-100)
    return Texts([text for text, _ in kept], labels)


def damaged(texts: Texts, tokenizer, seed: int) -> Tensor:
    """Logits of the sentences with a third of each one's tokens replaced by whole words at random."""
    random = torch.Generator().manual_seed(seed)
    words = torch.tensor(sorted(i for token, i in tokenizer.get_vocab().items() if token.isalpha()))
    ids = texts.labels.clamp(min=0)
    for row, length in zip(ids, texts.content.sum(1).tolist(), strict=True):
        places = torch.randperm(length, generator=random)[: -(-length // 3)]
        row[places] = words[torch.randint(len(words), places.shape, generator=random)]
    return torch.zeros(*ids.shape, len(tokenizer)).scatter_(-1, ids[..., None], CERTAINTY)


def recover(logits: Tensor, texts: Texts, loss: SoftBERTScoreLoss) -> Tensor:
    """Take gradient steps on nothing but the logits."""
    logits = logits.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=1.0, eps=1e-12, fused=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(logits, texts.labels).backward()
        optimizer.step()
    return logits.detach()


def decoded_f1(logits: Tensor, texts: Texts, tokenizer, encoder) -> float:
    """The metric's mean F1 of the likeliest tokens, written out as text."""
    likeliest = logits.clone()
    likeliest[..., tokenizer.all_special_ids] = -torch.inf
    rows = zip(likeliest.argmax(-1), texts.content, strict=True)
    decoded = [tokenizer.decode(row[kept]) for row, kept in rows]
    return bert_score(decoded, texts.sentences, encoder)["f1"].mean().item()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_recovers_damaged_sentences(encoder, minilm):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    texts = short_sentences(tokenizer)
    loss = SoftBERTScoreLoss(encoder, reduction="sum")
    start = damaged(texts, tokenizer, SEED)
    before = decoded_f1(start, texts, tokenizer, encoder)
    after = decoded_f1(recover(start, texts, loss), texts, tokenizer, encoder)
    assert before < 0.75
    # The rest is mostly order, which greedy matching does not penalize: words have changed places.
    assert (after - before) / (1 - before) > 0.68
