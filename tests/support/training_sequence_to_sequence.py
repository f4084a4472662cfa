"""A small language of facts about places and their sentences, and a small model that learns it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import torch
from torch import Tensor, nn

KINDS = [
    "bakery",
    "bank",
    "bar",
    "cafe",
    "castle",
    "church",
    "cinema",
    "club",
    "gallery",
    "garden",
    "hotel",
    "library",
    "market",
    "museum",
    "restaurant",
    "school",
    "shop",
    "studio",
    "theater",
    "tower",
]
AREAS = [
    "airport",
    "avenue",
    "beach",
    "bridge",
    "canal",
    "center",
    "field",
    "forest",
    "harbor",
    "hill",
    "lake",
    "mill",
    "park",
    "port",
    "river",
    "square",
    "station",
    "stream",
    "university",
    "village",
]
PRICES = {"low": ("cheap", "affordable"), "high": ("expensive", "costly")}
RATINGS = {"top": ("great", "excellent"), "flop": ("bad", "poor")}
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MEANINGS = list(product(KINDS, AREAS, PRICES, RATINGS, DAYS))
FACTS = sorted({*KINDS, *AREAS, *PRICES, *RATINGS, *DAYS})

# Ways to express a fact, from the most to the least frequent.
_FRAMES = (
    "the {price} {kind} {near} the {area} is {rating} but {shut} on {day}",
    "{near} the {area} there is a {price} {kind} , {rating} but {shut} on {day}",
    "{shut} on {day} , the {kind} {near} the {area} is {price} and {rating}",
)
_NEAR = ("near", "close to", "by")
_SHUT = ("closed", "shut")

Meaning = tuple[str, ...]


def say(meaning: Meaning, random: Random) -> str:
    """Return a sentence for a meaning; frequent ways are chosen more often."""

    def choose(ways: Sequence[str]) -> str:
        return random.choices(ways, [2.0**-k for k in range(len(ways))])[0]

    kind, area, price, rating, day = meaning
    words = {"price": PRICES[price], "rating": RATINGS[rating], "near": _NEAR, "shut": _SHUT}
    chosen = {name: choose(ways) for name, ways in words.items()}
    return choose(_FRAMES).format(kind=kind, area=area, day=day, **chosen)


def split_meanings(held_out: int, seed: int) -> tuple[list[Meaning], list[Meaning]]:
    """Return meanings to train on, and held-out ones."""
    shuffled = Random(seed).sample(MEANINGS, len(MEANINGS))
    return shuffled[held_out:], shuffled[:held_out]


class Generator(nn.Module):
    """A Transformer from facts to tokens."""

    def __init__(self, vocab_size: int, start_id: int, end_id: int, width: int = 64, positions: int = 24) -> None:
        super().__init__()
        self.start_id, self.end_id, self.positions = start_id, end_id, positions
        self.facts = nn.Embedding(len(FACTS), width)
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Parameter(0.1 * torch.randn(positions, width))
        self.transformer = nn.Transformer(
            width, 4, num_encoder_layers=1, num_decoder_layers=2, dim_feedforward=128, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(width, vocab_size)

    def forward(self, meanings: Sequence[Meaning], previous: Tensor) -> Tensor:
        """Return logits of the next token after each of the previous ones."""
        facts = torch.tensor([[FACTS.index(fact) for fact in meaning] for meaning in meanings])
        length = previous.shape[1]
        hidden = self.transformer(
            self.facts(facts),
            self.tokens(previous) + self.places[:length],
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length),
            tgt_is_causal=True,
        )
        return self.head(hidden)

    @torch.no_grad()
    def generate(self, meanings: Sequence[Meaning]) -> list[list[int]]:
        """Decode greedily up to the end token."""
        ids = torch.full((len(meanings), 1), self.start_id)
        for _ in range(self.positions):
            ids = torch.cat([ids, self(meanings, ids)[:, -1:].argmax(-1)], dim=1)
        rows = [row[1:].tolist() for row in ids]
        return [row[: row.index(self.end_id)] if self.end_id in row else row for row in rows]
