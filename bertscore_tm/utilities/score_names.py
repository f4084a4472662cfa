"""Names of the scores, in the order of the rows of their tensors."""

from typing import Literal

SCORE_NAMES = ("precision", "recall", "f1")
# The score that ranks, selects or trains.
Component = Literal["precision", "recall", "f1"]
