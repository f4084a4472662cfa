"""The signature of a score: one line with every setting that changes a number."""

from bertscore_tm.encoder.frozen_encoder import FrozenEncoder, join_signature
from bertscore_tm.scoring.rescaling import Baseline
from bertscore_tm.scoring.token_weights import WeightSource
from bertscore_tm.utilities.version import __version__


def score_signature(
    encoder: FrozenEncoder, source: WeightSource, baseline: Baseline | None = None, layer: int | None = None
) -> str:
    """Return one line with every setting that changes a number; equal signatures mean equal numbers."""
    import transformers

    settings = {"idf": source, "rescale": "no" if baseline is None else baseline}
    versions = {"bertscore-tm": __version__, "transformers": transformers.__version__}
    return join_signature({**encoder.signature_fields(layer), **settings, **versions})
