"""Added to cross-entropy with its default weight, the loss falls and keeps BLEU and length of a small model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torchmetrics.functional.text import bleu_score

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.benchmarks.small_generator import encoder_of_texts
from tests.support.training_sequence_to_sequence import Generator, Meaning, say, split_meanings

HELD_OUT, REFERENCES, BATCH = 80, 5, 16
STEPS_BEFORE, STEPS = 60, 30


@dataclass(frozen=True)
class Quality:
    bleu: float
    length_ratio: float
    repeats: float


def predict(
    model: Generator, meanings: Sequence[Meaning], encoder: FrozenEncoder, random: Random
) -> tuple[Tensor, Tensor]:
    """Return the logits of a sentence for each meaning, and their labels."""
    rows = encoder.tokenizer([say(meaning, random) for meaning in meanings]).ids
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=-100)
    return model(meanings, ids[:, :-1].clamp(min=0)), ids[:, 1:]


def learn(
    model: Generator,
    meanings: Sequence[Meaning],
    encoder: FrozenEncoder,
    steps: int,
    seed: int,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Generator:
    """Train a copy of a model; the same seed gives the same batches, with and without a loss."""
    model, random = copy.deepcopy(model), Random(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        logits, labels = predict(model, random.choices(meanings, k=BATCH), encoder, random)
        value = cross_entropy(logits.mT, labels)
        if loss is not None:
            value = value + 1.0 * loss(logits, labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return model


def quality(model: Generator, meanings: Sequence[Meaning], encoder: FrozenEncoder, seed: int) -> Quality:
    """What the model says about meanings that it has not seen, against several ways to say them."""
    random = Random(seed)
    references = [[say(meaning, random) for _ in range(REFERENCES)] for meaning in meanings]
    texts = [" ".join(encoder.tokenizer.tokens(row)) for row in model.generate(meanings)]
    words = [text.split() for text in texts]
    pairs = [pair for row in words for pair in pairwise(row)]
    reference_words = sum(len(text.split()) for several in references for text in several) / REFERENCES
    return Quality(
        100 * bleu_score(texts, references).item(),
        sum(map(len, words)) / reference_words,
        sum(first == second for first, second in pairs) / len(pairs),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_loss_falls_and_bleu_and_length_stay(minilm):
    seed = 0
    train, held_out = split_meanings(HELD_OUT, seed)
    random = Random(seed)
    encoder = encoder_of_texts(minilm, [say(meaning, random) for meaning in train[::5]], 3)
    ids = encoder.tokenizer.vocabulary
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = Generator(len(ids), ids["[CLS]"], ids["[SEP]"])
    start = learn(start, train, encoder, STEPS_BEFORE, seed)
    alone = learn(start, train, encoder, STEPS, seed + 1)
    loss = SoftBERTScoreLoss(encoder)
    both = learn(start, train, encoder, STEPS, seed + 1, loss)
    first, second, third = (quality(model, held_out, encoder, seed) for model in (start, alone, both))
    assert second.bleu > first.bleu + 5
    assert abs(third.bleu - second.bleu) < 2
    for found in (second, third):
        assert found.bleu < 100
        assert 0.85 < found.length_ratio < 1.15
        assert found.repeats < 0.01
    with torch.no_grad():
        lower, higher = (loss(*predict(model, held_out, encoder, Random(seed))) for model in (both, alone))
    assert lower < higher
