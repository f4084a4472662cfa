"""Arms of the study: the losses added to cross-entropy, each described by one line of text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from bertscore_tm import FrozenEncoder
from bertscore_tm.losses import SoftBERTScoreLoss
from examples.docstring_training import AddedLoss, SelfCritical, Soft

__all__ = ["BASELINE", "DEFAULT_ARMS", "Arm", "parse_arm"]

BASELINE = "cross-entropy"
"""The arm with which all others are compared."""

_OWN = ("weight", "layer", "anneal")
_SOFT = signature(SoftBERTScoreLoss).parameters.keys()
_RELAXATIONS = ("gumbel", "straight-through", "straight-through-gumbel", "sparsemax", "entmax15")
DEFAULT_ARMS: tuple[str, ...] = (
    BASELINE,
    "soft",
    "self-critical",
    *(f"soft:relaxation={name}" for name in _RELAXATIONS),
)
"""Cross-entropy alone, the BERTScore loss with its defaults, the self-critical loss, and every relaxation."""


@dataclass(frozen=True)
class Arm:
    """One setting of training from the shared start.

    Args:
        name: the line that describes the arm.
        kind: ``"cross-entropy"``, ``"soft"`` or ``"self-critical"``.
        weight: weight of the added loss; ``None``: the default of its kind.
        layer: encoder layer of the loss; ``None``: the layer of the metric.
        anneal: temperature of the relaxation at the last step, reached linearly; ``None``: a constant temperature.
        settings: arguments of ``SoftBERTScoreLoss``.
    """

    name: str
    kind: str
    weight: float | None = None
    layer: int | None = None
    anneal: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The name, made safe for file names."""
        return re.sub(r"[^A-Za-z0-9.=-]+", "_", self.name)

    def loss(self, encoder: FrozenEncoder, tokenizer: Any) -> AddedLoss | None:
        """Return the loss that is added to cross-entropy.

        Args:
            encoder: the frozen encoder of the metric.
            tokenizer: the generator's tokenizer.

        Returns:
            The added loss; ``None`` for cross-entropy alone.
        """
        if self.kind == BASELINE:
            return None
        if self.layer is not None:
            encoder = FrozenEncoder(encoder.name, num_layers=self.layer)
        return (
            SelfCritical(encoder, tokenizer)
            if self.kind == "self-critical"
            else Soft(encoder, tokenizer, **self.settings)
        )


def parse_arm(line: str) -> Arm:
    """Parse the description of an arm.

    Args:
        line: kind and settings, such as ``soft:weight=2,relaxation=gumbel,temperature=0.5``. The settings are
            ``weight``, ``layer``, ``anneal`` and, for ``soft``, all arguments of ``SoftBERTScoreLoss``.

    Returns:
        The arm.

    Raises:
        ValueError: the kind or a setting is unknown, or a setting has no value.
    """
    kind, _, rest = line.partition(":")
    if kind not in (BASELINE, "soft", "self-critical"):
        raise ValueError(
            f"an arm must be cross-entropy, soft or self-critical, with settings after a colon; got {line!r}"
        )
    settings: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ValueError(f"settings of an arm must have the form name=value; got {part!r} in {line!r}")
        settings[name] = _value(value)
    if kind == "soft" and (unknown := settings.keys() - _SOFT - set(_OWN)):
        raise ValueError(f"SoftBERTScoreLoss has no argument {', '.join(sorted(unknown))}; got {line!r}")
    own = {name: settings.pop(name) for name in _OWN if name in settings}
    if (settings and kind != "soft") or (own and kind == BASELINE):
        raise ValueError(f"{kind} has no settings {', '.join(settings or own)}; got {line!r}")
    return Arm(line, kind, settings=settings, **own)


def _value(text: str) -> Any:
    """Return the number in a text, or the text if it is not a number."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
