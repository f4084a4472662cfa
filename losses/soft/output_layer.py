"""The way from a generator's last hidden states to its logits."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bertscore_tm.losses.evaluation import evaluation_mode

# Models that scale their decoder's output by default: those with tied embeddings.
_SCALED_FAMILIES = {"t5", "mt5", "longt5"}
# Positions whose logits are compared with the generator's.
_CHECKED_POSITIONS = 4


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
def require_equal_logits(lm_head: nn.Module | Tensor, layer: OutputLayer) -> None:
    """Raise an error if a generator or its layer computes other logits than its weight and bias do."""
    if isinstance(lm_head, Tensor):
        return
    weight, is_generator = layer.weight, hasattr(lm_head, "get_output_embeddings")
    if is_generator:
        hidden, expected = _generate(lm_head, weight.device)
    else:
        hidden = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device)[None]  # (1, features)
        expected = lm_head(hidden)
    largest, difference = expected.abs().max(), (layer.logits(hidden) - expected.float()).abs().max()
    # Sums over the features are rounded in float32, the layer's inputs and outputs in its own precision.
    rounding = 8 * torch.finfo(weight.dtype).eps + weight.shape[1] ** 0.5 * torch.finfo(torch.float32).eps
    if not difference <= rounding * largest:
        remedy = "pass its logits to forward" if is_generator else "pass the generator as lm_head, or logits to forward"
        raise ValueError(
            f"lm_head computes other logits of its hidden states than its weight and bias (they differ by up to "
            f"{difference:.2g}), as generators do that cap or otherwise change them: {remedy}"
        )


def _generate(generator: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a generator's last hidden states and logits of a few tokens, shape (1, positions, ...) each."""
    ids = torch.arange(_CHECKED_POSITIONS, device=device)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "return_dict": True}
    is_encoder_decoder = generator.config.is_encoder_decoder
    if is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    with evaluation_mode(generator):
        output = generator(**inputs, output_hidden_states=True)
    return (output.decoder_hidden_states if is_encoder_decoder else output.hidden_states)[-1], output.logits
