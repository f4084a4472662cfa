"""Arms of the study and their comparisons, fixed before the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["ARMS", "BASELINE", "COMPARISONS", "TESTED", "Arm"]

BASELINE = "cross-entropy"
"""The arm whose step is the unit of time."""


@dataclass(frozen=True)
class Arm:
    """One way to continue training from a checkpoint.

    Args:
        soft: arguments of the ``SoftBERTScoreLoss`` that is added to cross-entropy with weight 1; ``None``: none.
        targets: candidates that replace references: ``"best"``, or ``"random"`` ones for the same examples.
        at_wall_time: take as many steps as fit into the time of the dearest arm.
    """

    soft: Mapping[str, Any] | None = None
    targets: Literal["reference", "best", "random"] = "reference"
    at_wall_time: bool = False


ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        BASELINE: Arm(),
        "cross-entropy, wall time": Arm(at_wall_time=True),
        "soft": Arm(soft={}),
        "soft, entmax15": Arm(soft={"relaxation": "entmax15"}),
        "best-of-n": Arm(targets="best"),
        "random-of-n": Arm(targets="random"),
    }
)
"""The arms by name."""

COMPARISONS: tuple[tuple[str, str], ...] = (
    *((arm, BASELINE) for arm in ARMS if arm != BASELINE),
    ("best-of-n", "random-of-n"),
)
"""Each arm with the one it is compared with."""

TESTED = ("layer6_f1", "rougeL")
"""Measures whose differences are tested; those of all others are reported with their intervals only."""
