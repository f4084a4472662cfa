"""Data of an alignment: which tokens of two texts match, and what each token adds to the score."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Index of the match of a token whose most similar token is a special token.
SPECIAL = -1


class EmptyTextError(ValueError):
    """A text has no tokens to align."""


@dataclass(frozen=True)
class AlignedText:
    """One of two aligned texts, without its special tokens.

    Args:
        tokens: the tokens, spelled as in the text.
        joined: whether each token follows the one before without a space.
        weights: weight of each token, shape (tokens,), float64.
        best: similarity of each token to the most similar token of the other text, shape (tokens,), float32. Special
            tokens count unless the encoder excludes them.
        matches: index of that token in the other text's ``tokens``, shape (tokens,), int64; -1 for a special token.
        shares: what each token adds to the text's score, shape (tokens,), float64. The score of the candidate is the
            precision, that of the reference the recall.
        special_share: what the text's special tokens add to the score. All shares and this number sum to the score.
        text: the text.
        spans: start and end of each token in the text; ``None`` if the tokenizer has no offsets.
    """

    tokens: list[str]
    joined: list[bool]
    weights: Tensor
    best: Tensor
    matches: Tensor
    shares: Tensor
    special_share: float
    text: str = ""
    spans: list[tuple[int, int]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the tokens and their numbers as lists, for JSON. Text and spans are left out."""
        return {
            "tokens": self.tokens,
            "weights": [_round_small(weight) for weight in self.weights.tolist()],
            "best": [round(similarity, 6) for similarity in self.best.tolist()],
            "shares": [_round_small(share) for share in self.shares.tolist()],
            "matches": self.matches.tolist(),
            "special_share": _round_small(self.special_share),
        }


def _round_small(value: float) -> float:
    """Round to six significant digits, because weights and shares may be far smaller than a score."""
    return float(f"{value:.6g}")


@dataclass(frozen=True, repr=False)
class AlignmentData:
    """Two texts, token by token, and their scores; :class:`bertscore_tm.Alignment` describes the attributes."""

    candidate: AlignedText
    reference: AlignedText
    similarity: Tensor
    precision: float
    recall: float
    f1: float
    num_truncated: int
    settings: str
    is_weighted: bool
