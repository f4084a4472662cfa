"""The way from a generator's last hidden states to its logits."""

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertscore_tm.losses.evaluation import evaluation_mode

# Positions whose logits are compared with the generator's.
_CHECKED_POSITIONS = 16
# Scale of each generator and output layer that was compared.
_SCALES: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


@dataclass(frozen=True)
class OutputLayer:
    r"""A generator's linear output layer, :math:`z = (s h) W^\top + b`."""

    weight: Tensor  # W, (outputs, features)
    bias: Tensor | None  # b, (outputs,)
    scale: float = 1.0  # s, by which the generator multiplies its hidden states or the product

    def logits(self, hidden: Tensor, size: int | None = None) -> Tensor:
        """Return the first ``size`` logits of hidden states, without gradient, shape (..., outputs)."""
        dtype = torch.promote_types(torch.float32, hidden.dtype)
        bias = None if self.bias is None else self.bias.detach()[:size].to(dtype)
        scaled = hidden.detach() if self.scale == 1 else hidden.detach() * self.scale
        return nn.functional.linear(scaled.to(dtype), self.weight.detach()[:size].to(dtype), bias)


def read_output_layer(lm_head: nn.Module | Tensor) -> OutputLayer:
    """Return the output layer of a generator, with its scale and added bias; an error if it computes other logits."""
    if isinstance(lm_head, Tensor):
        return OutputLayer(lm_head, None)
    return replace(_find_layer(lm_head)[1], scale=_measure_scale(lm_head))


def _find_layer(lm_head: nn.Module) -> tuple[nn.Module, OutputLayer]:
    """Return the module that is the output layer, and what it computes, without the scale."""
    generator: Any = lm_head if hasattr(lm_head, "get_output_embeddings") else None
    module: Any = lm_head if generator is None else generator.get_output_embeddings()
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if not isinstance(weight, Tensor):
        raise TypeError(
            f"lm_head must be a generator, an output layer with a weight, or the weight, got a {type(lm_head).__name__}"
        )
    others = [parameter for parameter in module.parameters() if parameter is not weight and parameter is not bias]
    # A weight that torch's parametrizations compute is no parameter, and hands its gradient on.
    if isinstance(weight, nn.Parameter) and any(parameter.requires_grad for parameter in others):
        raise ValueError(
            "lm_head trains more than a weight and a bias, as with LoRA on the output layer: pass its logits to forward"
        )
    added = getattr(generator, "final_logits_bias", None)
    if added is not None:
        bias = added.flatten() if bias is None else bias + added.flatten()
    return module, OutputLayer(weight, bias)


# Before 2.13, torch takes no module as the argument of a function whose result is constant: it ends the graph.
_constant: Any = torch.compiler.assume_constant_result if torch.__version__ >= "2.13" else torch.compiler.disable


# Run while torch.compile traces the loss, rather than traced: the pass of the generator is not part of the graph.
@_constant  # type: ignore[untyped-decorator]
@torch.no_grad()
def _measure_scale(lm_head: Any) -> float:
    """Return the ratio of a generator's or a layer's logits to the products of the weight; once for each module."""
    if lm_head in _SCALES:
        return _SCALES[lm_head]
    (module, layer), scale = _find_layer(lm_head), 1.0
    weight, own = layer.weight, OutputLayer(layer.weight, getattr(module, "bias", None))
    own_bias, bias = (0.0 if added is None else added for added in (own.bias, layer.bias))
    with torch.autocast(device_type=weight.device.type, enabled=False):
        if module is lm_head:
            states = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device)[None]
            steps = [(lm_head(states), replace(own, bias=None).logits(states), bias)]
        else:
            hidden, states, outputs, logits = _generate(lm_head, module, own)
            products = replace(own, bias=None).logits(states)
            steps = [(states, hidden, 0.0), (outputs, products, own_bias), (logits, products, bias)]
    for values, inputs, added in steps:
        # Sums over the features are rounded in float32, all else in the precision of the values.
        rounding = 2 * torch.finfo(values.dtype).eps + weight.shape[1] ** 0.5 * torch.finfo(torch.float32).eps
        values, inputs = (tensor.to(torch.promote_types(torch.float32, tensor.dtype)) for tensor in (values, inputs))
        total = inputs.square().sum()
        ratio = float(((values - added) * inputs).sum() / total) if total > 0 else 1.0
        if abs(ratio - 1) <= rounding:
            ratio = 1.0
        difference = (values - added - ratio * inputs).abs().max()
        if not difference <= rounding * values.abs().max():
            remedy = "pass the generator as lm_head, or" if module is lm_head else "pass its"
            raise ValueError(
                f"lm_head computes other logits of its hidden states than its weight and bias (they differ by up to "
                f"{difference:.2g}), as generators do that cap or otherwise change them: {remedy} logits to forward"
            )
        scale *= ratio
    _SCALES[lm_head] = scale
    return scale


def _generate(generator: Any, module: nn.Module, own: OutputLayer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a generator's last hidden states, inputs and outputs of its output layer, and the logits of a few tokens.

    The logits are those of outputs in float32 at least, to show the smallest cap; all shapes are (1, positions, ...).
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def compute_exactly(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        calls.append((inputs[0], outputs))
        return own.logits(inputs[0])

    ids = torch.arange(_CHECKED_POSITIONS, device=own.weight.device)[None] % len(own.weight)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "return_dict": True}
    is_encoder_decoder = generator.config.is_encoder_decoder
    if is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    hook = module.register_forward_hook(compute_exactly)
    try:
        # A compiled generator may leave hooks out.
        with evaluation_mode(generator), torch.compiler.set_stance("force_eager"):
            output = generator(**inputs, output_hidden_states=True)
    finally:
        hook.remove()
    hidden = (output.decoder_hidden_states if is_encoder_decoder else output.hidden_states)[-1]
    return hidden, *(calls[0] if calls else (hidden, output.logits)), output.logits
