"""The settings of a score: everything besides the texts that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertscore_tm.encoder import FrozenEncoder, Signature
from bertscore_tm.matching.scores import harmonic_mean
from bertscore_tm.scoring.idf import Idf, TokenWeights, token_weights
from bertscore_tm.scoring.rescaling import Baseline, Rescale, find_baseline, rescale_scores
from bertscore_tm.utilities.version import __version__


@dataclass(frozen=True)
class ScoreSettings:
    """Everything besides the texts that scores depend on.

    Args:
        encoder: the encoder.
        weights: weight of every token id.
        baseline: its rows of the compared layers; ``None`` without rescaling.
        f1: function of precision and recall.
        layer: the compared layer of an encoder of all layers. Default: all of them.
        given_device: where to encode. Default: the encoder's device.
    """

    encoder: FrozenEncoder
    weights: TokenWeights
    baseline: Baseline | None = None
    f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean
    layer: int | None = None
    given_device: torch.device | None = None

    @classmethod
    def create(
        cls,
        encoder: FrozenEncoder,
        idf: Idf = False,
        rescale: Rescale = False,
        *,
        references: Sequence[str] | None = None,
        f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean,
    ) -> ScoreSettings:
        """Return the settings that the arguments of a function describe; ``idf=True`` counts the references."""
        baseline = find_baseline(encoder, rescale)
        return cls(encoder, token_weights(encoder, idf, references, encoder.device), baseline, f1)

    @property
    def device(self) -> torch.device:
        """Where texts are encoded."""
        if self.given_device is not None:
            return self.given_device
        return self.encoder.device

    @property
    def num_layers(self) -> int:
        """Number of compared layers."""
        if self.layer is not None:
            return 1
        return self.encoder.num_outputs

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Least and largest possible precision, recall and F1 of the last compared layer, shape (3,) each."""
        ends = torch.tensor([-1.0, 1.0], dtype=torch.float64, device="cpu").expand(3, 1, 2)  # (3, 1, ends)
        rescaled = rescale_scores(ends, self.baseline)[:, -1]  # (3, 2)
        least, largest = rescaled.sort(-1).values.unbind(-1)
        return least, largest

    def signature(self, more: Mapping[str, Any] | None = None) -> Signature:
        """Return every setting that changes a score, with ``more`` before the versions; reads the model's contents."""
        return self.encoder.signature(self.layer, self.device) | self._fields() | (more or {}) | _versions()

    def without_model(self) -> Signature:
        """Return the signature without the fields that name the model, for which nothing is read."""
        return Signature(self.encoder.option_fields(self.layer)) | self._fields() | _versions()

    def _fields(self) -> dict[str, object]:
        """Return the fields of token weights, rescaling and F1."""
        fields: dict[str, object] = {"idf": self.weights.source, "rescale": "no"}
        if self.baseline is not None:
            fields["rescale"] = self.baseline
        # The usual F1 is left out, because nearly all signatures would have it.
        if self.f1 is not harmonic_mean:
            fields["f1"] = self.f1.__name__
        return fields


def _versions() -> dict[str, str]:
    """Return the versions on which scores depend."""
    import transformers

    return {"bertscore-tm": __version__, "transformers": transformers.__version__}
