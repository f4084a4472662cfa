"""The signature of a score: every setting that changes a number."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bertscore_tm.core.scores import harmonic_mean
from bertscore_tm.encoder import FrozenEncoder, Signature
from bertscore_tm.scoring.rescaling import Baseline
from bertscore_tm.scoring.token_weights import WeightSource
from bertscore_tm.utilities.version import __version__


def score_signature(
    encoder: FrozenEncoder,
    source: WeightSource,
    baseline: Baseline | None = None,
    layer: int | None = None,
    device: torch.device | None = None,
    f1: Callable[[Tensor, Tensor], Tensor] = harmonic_mean,
    more: Mapping[str, object] | None = None,
    strip_thoughts: bool = False,
) -> Signature:
    """Return every setting that changes a number, and ``more``; equal ones mean equal numbers."""
    return (
        encoder.signature(layer, device)
        | score_fields(source, baseline, f1)
        | (more or {})
        | version_fields()
        | {"thoughts": "stripped" if strip_thoughts else None}
    )


def score_fields(
    source: WeightSource, baseline: Baseline | None, f1: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, object]:
    """Return the fields of token weights, rescaling and F1."""
    return {
        "idf": source,
        "rescale": "no" if baseline is None else baseline,
        "f1": None if f1 is harmonic_mean else f1.__name__,
    }


def version_fields() -> dict[str, str]:
    """Return the versions of this package and of transformers."""
    import transformers

    return {"bertscore-tm": __version__, "transformers": transformers.__version__}
