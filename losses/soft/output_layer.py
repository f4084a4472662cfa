"""The way from a generator's last hidden states to its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertscore_tm.losses.evaluation import evaluation_mode

__all__ = ["OutputLayer", "read_output_layer", "require_equal_logits"]

# Models that scale their decoder's output by default: those with tied embeddings.
_SCALED_FAMILIES = {"t5", "mt5", "longt5"}


@dataclass(frozen=True)
class OutputLayer:
    r"""A linear output layer, as read from a generator.

    .. math:: z = (s h) W^\top + b

    Args:
        weight: W, shape (outputs, features).
        bias: b, shape (outputs,), or none.
        scale: s, what the generator multiplies its hidden states by.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float = 1.0

    def logits(self, hidden: Tensor, size: int | None = None) -> Tensor:
        """Return the first ``size`` logits of hidden states, without gradient, shape (..., outputs)."""
        dtype = torch.promote_types(torch.float32, hidden.dtype)
        bias = None if self.bias is None else self.bias.detach()[:size].to(dtype)
        scaled = hidden.detach() if self.scale == 1 else hidden.detach() * self.scale
        return nn.functional.linear(scaled.to(dtype), self.weight.detach()[:size].to(dtype), bias)


def read_output_layer(lm_head: nn.Module | Tensor) -> OutputLayer:
    """Return the output layer of a generator, with what T5 multiplies before it and BART's family adds after it."""
    if isinstance(lm_head, Tensor):
        return OutputLayer(lm_head, None)
    generator: Any = lm_head if hasattr(lm_head, "get_output_embeddings") else None
    layer = lm_head if generator is None else generator.get_output_embeddings()
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    if not isinstance(weight, Tensor):
        raise TypeError(
            f"lm_head must be a generator, an output layer with a weight, or the weight, got a {type(lm_head).__name__}"
        )
    if generator is None:
        return OutputLayer(weight, bias)
    config, added = generator.config, getattr(generator, "final_logits_bias", None)
    if added is not None:
        bias = added.flatten() if bias is None else bias + added.flatten()
    is_scaled = config.model_type in _SCALED_FAMILIES and config.tie_word_embeddings
    scale = config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", is_scaled) else 1.0
    return OutputLayer(weight, bias, scale)


@torch.no_grad()
def require_equal_logits(lm_head: nn.Module | Tensor, layer: OutputLayer, hidden: Tensor) -> None:
    """Raise an error if a generator or its layer has other logits of hidden states, shape (positions, features)."""
    if isinstance(lm_head, Tensor) or len(hidden) == 0:
        return
    hidden = hidden.detach().to(layer.weight.dtype)
    is_generator = hasattr(lm_head, "get_output_embeddings")
    expected = (_generate_logits(lm_head, hidden) if is_generator else lm_head(hidden)).float()
    largest, difference = expected.abs().max(), (layer.logits(hidden) - expected).abs().max()
    # Sums over the features are rounded in float32, the layer's inputs and outputs in its own precision.
    rounding = 8 * torch.finfo(layer.weight.dtype).eps + hidden.shape[1] ** 0.5 * torch.finfo(torch.float32).eps
    if not difference <= rounding * largest:
        remedy = "pass its logits to forward" if is_generator else "pass the generator as lm_head, or logits to forward"
        raise ValueError(
            f"lm_head computes other logits of these hidden states than its weight and bias (they differ by up to "
            f"{difference:.2g}), as generators do that cap or otherwise change them: {remedy}"
        )


def _generate_logits(generator: Any, hidden: Tensor) -> Tensor:
    """Return a generator's logits of hidden states that take the place of its decoder's, shape (positions, outputs)."""
    ids = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "return_dict": True}
    if generator.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids

    def replace(module: nn.Module, arguments: Any, output: Any) -> Any:
        output.last_hidden_state = hidden[None]  # (1, positions, features)
        return output

    handle = generator.get_decoder().register_forward_hook(replace)
    try:
        with evaluation_mode(generator):
            logits: Tensor = generator(**inputs).logits[0]
    finally:
        handle.remove()
    return logits
