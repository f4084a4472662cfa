"""What is known of an alignment: which tokens of two texts match, and what each adds to the score."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Match of a token whose most similar token is a special one.
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
        best: similarity of each token to the most similar token of the other text, special ones included unless the
            encoder excludes them, shape (tokens,), float32.
        matches: index of that token in the other text's ``tokens``, shape (tokens,), int64; -1 for a special token.
        shares: what each token adds to the text's score, precision for the candidate and recall for the reference,
            shape (tokens,), float64.
        special_share: what the text's special tokens add to the score. The shares and this sum to the score.
        text: the text.
        spans: start and end of each token in the text; ``None`` if the tokenizer does not tell.
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
        """Return the tokens and their numbers, without their places in the text, as lists, for JSON."""
        return {
            "tokens": self.tokens,
            "weights": [_round_small(weight) for weight in self.weights.tolist()],
            "best": [round(similarity, 6) for similarity in self.best.tolist()],
            "shares": [_round_small(share) for share in self.shares.tolist()],
            "matches": self.matches.tolist(),
            "special_share": _round_small(self.special_share),
        }


def _round_small(value: float) -> float:
    """Round a number that may be far smaller than a score to six significant digits."""
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
