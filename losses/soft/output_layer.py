"""Output layers: how a generator computes its logits from its last hidden states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertscore_tm.losses.evaluation import evaluation_mode

# Number of positions at which the logits are compared with the generator's.
_CHECKED_POSITIONS = 16
# Scales measured so far, by generator or output layer.
_SCALES: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


@dataclass(frozen=True)
class OutputLayer:
    r"""A generator's linear output layer, :math:`z = (s h) W^\top + b`."""

    weight: Tensor  # W, (outputs, features)
    bias: Tensor | None  # b, (outputs,)
    scale: float = 1.0  # s, a factor of the hidden states or, equally, of the product

    def first(self, size: int) -> OutputLayer:
        """Return the layer with its first outputs only."""
        if size == len(self.weight):
            # The gradient of a slice would allocate a tensor as large as the weight.
            return self
        bias = self.bias
        if bias is not None:
            bias = bias[:size]
        return replace(self, weight=self.weight[:size], bias=bias)

    def logits(self, hidden: Tensor, size: int | None = None) -> Tensor:
        """Return the first ``size`` logits of hidden states in float32 or wider, without gradient, shape (..., size).

        The default is all logits.
        """
        dtype = torch.promote_types(torch.float32, hidden.dtype)
        hidden = hidden.detach()
        if self.scale != 1:
            hidden = hidden * self.scale
        weight = self.weight.detach()[:size].to(dtype)
        bias = None
        if self.bias is not None:
            bias = self.bias.detach()[:size].to(dtype)
        return nn.functional.linear(hidden.to(dtype), weight, bias)


def read_output_layer(lm_head: nn.Module | Tensor) -> OutputLayer:
    """Return the output layer of a generator with its scale and bias, or raise an error if it computes other logits."""
    if isinstance(lm_head, Tensor):
        return OutputLayer(lm_head, bias=None)
    _, layer = _find_layer(lm_head)
    return replace(layer, scale=_measure_scale(lm_head))


def _find_layer(lm_head: nn.Module) -> tuple[nn.Module, OutputLayer]:
    """Return the module of the output layer, and its weight and bias."""
    module: Any = lm_head
    generator_bias = None
    is_generator = hasattr(lm_head, "get_output_embeddings")
    if is_generator:
        module = module.get_output_embeddings()
        # BART has a bias that is not part of the output layer.
        generator_bias = getattr(lm_head, "final_logits_bias", None)
    weight = getattr(module, "weight", None)
    bias = getattr(module, "bias", None)
    if not isinstance(weight, Tensor):
        raise TypeError(
            f"lm_head must be a generator, an output layer with a weight, or the weight, got a {type(lm_head).__name__}"
        )
    # A weight computed by torch's parametrizations is not a parameter: other parameters get their gradient through it.
    if isinstance(weight, nn.Parameter):
        for parameter in module.parameters():
            is_other = parameter is not weight and parameter is not bias
            if is_other and parameter.requires_grad:
                raise ValueError(
                    "lm_head trains more than a weight and a bias, as with LoRA on the output layer. Pass its logits "
                    "to forward."
                )
    if generator_bias is not None:
        generator_bias = generator_bias.flatten()
        if bias is None:
            bias = generator_bias
        else:
            bias = bias + generator_bias
    return module, OutputLayer(weight, bias)


@dataclass(frozen=True)
class _Step:
    """Input and output of a step from hidden states to logits, which should be ``outputs = ratio * inputs + bias``."""

    inputs: Tensor  # (..., width)
    outputs: Tensor  # (..., width)
    bias: Tensor | None = None  # (width,)


# Before torch 2.13, assume_constant_result breaks the graph if an argument is an nn.Module.
_constant: Any = torch.compiler.disable
if torch.__version__ >= "2.13":
    _constant = torch.compiler.assume_constant_result


# While torch.compile traces the loss, run this instead of tracing it: the generator's pass is not part of the graph.
@_constant  # type: ignore[untyped-decorator]
@torch.no_grad()
def _measure_scale(lm_head: Any) -> float:
    """Return the factor between an output layer's logits and the products of its weight, measured once per module."""
    if lm_head in _SCALES:
        return _SCALES[lm_head]
    module, layer = _find_layer(lm_head)
    # _find_layer returns the output layer of a generator, and any other module itself.
    is_bare_layer = module is lm_head
    # Autocast would compute the products in half precision.
    with torch.autocast(device_type=layer.weight.device.type, enabled=False):
        if is_bare_layer:
            steps = [_run_layer(module, layer)]
            remedy = "Pass the generator as lm_head, or logits to forward."
        else:
            steps = _run_generator(lm_head, module, layer)
            remedy = "Pass its logits to forward."
        width = layer.weight.shape[1]
        # Each step is an (input, output) pair. The ratios of all steps multiply to the scale.
        scale = 1.0
        for step in steps:
            scale *= _find_ratio(step, width=width, remedy=remedy)
    _SCALES[lm_head] = scale
    return scale


def _run_layer(module: nn.Module, layer: OutputLayer) -> _Step:
    """Run an output layer without its generator, on values between -1 and 1."""
    weight = layer.weight
    states = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device)[None]
    return _Step(inputs=_multiply(weight, states), outputs=module(states), bias=layer.bias)


def _run_generator(generator: Any, module: nn.Module, layer: OutputLayer) -> list[_Step]:
    """Run a generator on a few tokens, and return the three steps between its hidden states and its logits.

    The second step ends with the outputs of the output layer, and the third one begins with products again: `_generate`
    replaces the outputs by products in float32, from which the generator computes its logits.
    """
    module_bias = getattr(module, "bias", None)  # without the generator's own bias, unlike layer.bias
    hidden, states, outputs, logits = _generate(generator, module, OutputLayer(layer.weight, module_bias))
    products = _multiply(layer.weight, states)  # (1, positions, vocabulary)
    return [
        # T5 multiplies the hidden states before the output layer.
        _Step(inputs=hidden, outputs=states),
        # The output layer may do more than multiply, for example with LoRA.
        _Step(inputs=products, outputs=outputs, bias=module_bias),
        # Cohere multiplies the products, and BART adds a bias that is not the layer's.
        _Step(inputs=products, outputs=logits, bias=layer.bias),
    ]


def _multiply(weight: Tensor, states: Tensor) -> Tensor:
    """Return ``states @ weight.T`` in float32 or wider."""
    return OutputLayer(weight, bias=None).logits(states)


def _find_ratio(step: _Step, *, width: int, remedy: str) -> float:
    """Return the ratio of a step by least squares, or raise a ValueError if the step computes anything else."""
    # Sums over the features are rounded in float32, everything else in the precision of the outputs.
    rounding = 2 * torch.finfo(step.outputs.dtype).eps + width**0.5 * torch.finfo(torch.float32).eps
    inputs = step.inputs.to(torch.promote_types(torch.float32, step.inputs.dtype))
    outputs = step.outputs.to(torch.promote_types(torch.float32, step.outputs.dtype))
    scaled = outputs
    if step.bias is not None:
        scaled = outputs - step.bias
    norm = inputs.square().sum()
    ratio = 1.0
    if norm > 0:
        ratio = float((scaled * inputs).sum() / norm)
    if abs(ratio - 1) <= rounding:
        ratio = 1.0
    difference = (scaled - ratio * inputs).abs().max()
    # The comparison is negated, because NaN has to fail as well.
    if not difference <= rounding * outputs.abs().max():
        raise ValueError(
            f"lm_head computes other logits than its weight and bias: they differ by up to {difference:.2g}, as in "
            f"generators that cap their logits. {remedy}"
        )
    return ratio


def _generate(generator: Any, module: nn.Module, layer: OutputLayer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run a generator on a few tokens, and return its last hidden states and what its output layer does.

    The output layer's products are replaced by float32 ones, so that even a small cap of the logits can be seen.

    Returns:
        Last hidden states, inputs of the output layer, its outputs, and logits; shape (1, positions, ...) each.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def compute_in_float32(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        calls.append((inputs[0], outputs))
        return layer.logits(inputs[0])

    vocab_size = len(layer.weight)
    ids = torch.arange(_CHECKED_POSITIONS, device=layer.weight.device)[None] % vocab_size  # (1, positions)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "return_dict": True}
    is_encoder_decoder = generator.config.is_encoder_decoder
    if is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    hook = module.register_forward_hook(compute_in_float32)
    try:
        # Run eagerly, because a compiled generator may leave hooks out.
        with evaluation_mode(generator), torch.compiler.set_stance("force_eager"):
            output = generator(**inputs, output_hidden_states=True)
    finally:
        hook.remove()
    if is_encoder_decoder:
        hidden = output.decoder_hidden_states[-1]
    else:
        hidden = output.hidden_states[-1]
    if not calls:
        # The generator used the weight without calling the layer.
        return hidden, hidden, output.logits, output.logits
    states, outputs = calls[0]
    return hidden, states, outputs, output.logits
