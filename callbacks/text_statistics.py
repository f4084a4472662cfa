"""Statistics of generated texts that explain changes of a score: lengths, empty texts and the time of generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from bertscore_tm.scoring.texts import as_text_pairs

__all__ = ["TextStatistics"]


class TextStatistics(Metric):
    """Length ratio, share of empty predictions, and seconds of generation.

    The length ratio is the number of characters of all predictions divided by that of their references; of several
    references the one that is closest in length counts, as in BLEU. Texts are stripped before.

    Example:
        >>> statistics = TextStatistics()
        >>> statistics.update(["a cat", ""], ["a big cat", "a"])
        >>> {name: value.item() for name, value in statistics.compute().items()}
        {'length_ratio': 0.5, 'empty_share': 0.5}
    """

    full_state_update = False
    num_characters: Tensor
    num_reference_characters: Tensor
    num_empty: Tensor
    num_texts: Tensor
    seconds: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("num_characters", "num_reference_characters", "num_empty", "num_texts"):
            self.add_state(name, torch.tensor(0, dtype=torch.int64, device=self.device), "sum")
        self.add_state("seconds", torch.tensor(0.0, dtype=torch.float32, device=self.device), "max")

    def update(self, preds: Sequence[str], target: Sequence[Any]) -> None:
        """Count the characters and the empty texts of predictions and their references."""
        pairs = as_text_pairs(preds, target)
        for candidate, references in zip(pairs.candidates, pairs.references, strict=True):
            length = len(candidate.strip())
            lengths = [len(reference.strip()) for reference in references]
            self.num_characters += length
            self.num_reference_characters += min(lengths, key=lambda one: (abs(one - length), one))
            self.num_empty += length == 0
            self.num_texts += 1

    def compute(self) -> dict[str, Tensor]:
        """Return the statistics, with ``generation_seconds`` of the slowest rank if there was a generation."""
        found = {
            "length_ratio": self.num_characters.float() / self.num_reference_characters.float(),
            "empty_share": self.num_empty.float() / self.num_texts.float(),
        }
        return found | ({"generation_seconds": self.seconds} if self.seconds > 0 else {})
