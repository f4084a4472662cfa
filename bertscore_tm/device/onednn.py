"""Faster linear layers and GELU of a frozen model on a CPU: oneDNN with packed weights, and in-place activations.

torch multiplies float32 matrices by MKL, which uses AVX512 only on Intel's processors, and repacks bfloat16 weights at
every call. oneDNN, which torch bundles, uses AVX512 on all processors, and can keep a frozen weight packed.

The environment variable ``BERTSCORE_TM_ONEDNN`` is the switch. ``0`` means torch's functions, and ``1`` means oneDNN on
every processor and for layers of every size. By default oneDNN is used where it is faster, see
:func:`gains_from_onednn`.
"""

import os
import platform
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

# oneDNN compiles a kernel of about half a megabyte for every number of rows, and caches it. So matrices are split into
# parts of at most this many rows, and padded to one of few sizes.
_MAX_ROWS = 2048
# Limit on the rows: multiple to which matrices with at most this many rows are padded.
_ROW_MULTIPLES = {32: 8, 64: 16, 512: 32, _MAX_ROWS: 128}


def _count_padding(num_rows: int) -> int:
    """Return how many rows to add to a matrix, so that the number of rows is a multiple for its size."""
    multiple = next(multiple for limit, multiple in _ROW_MULTIPLES.items() if num_rows <= limit)
    return -num_rows % multiple


# Rows that are added, by the number of rows. It is a list, because each layer looks it up.
_PADDING = [_count_padding(num_rows) for num_rows in range(_MAX_ROWS + 1)]
# Layers with fewer weights, about 180 x 180, are not packed: a packed layer takes 16 us longer to call, which pays off
# from 64 rows on (AMD Zen 5, float32).
_MIN_WEIGHT_SIZE = 2**15
_SWITCH = "BERTSCORE_TM_ONEDNN"


def is_eager() -> bool:
    """Return False under ``torch.compile`` and transforms of ``torch.func``.

    Neither supports this package's custom autograd functions.
    """
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


class Processor(NamedTuple):
    """Vendor of a processor, and the instructions and library that torch uses on it."""

    vendor: str  # "GenuineIntel", "AuthenticAMD", or "" for others
    has_avx512: bool
    has_bfloat16: bool
    has_amx: bool  # Intel's instructions for products of bfloat16 matrices
    has_mkl: bool


@cache
def this_processor() -> Processor:
    """Return this processor, with the instructions that ``ATEN_CPU_CAPABILITY`` lets torch use."""
    # Linux has the vendor in a file, and Windows has it in the processor's name.
    file = Path("/proc/cpuinfo")
    if file.exists():
        description = file.read_text(encoding="utf-8")
    else:
        # Only here, because it starts a process on Linux.
        description = platform.processor()
    vendor = next((name for name in ("GenuineIntel", "AuthenticAMD") if name in description), "")
    # The two checks below are private: a version of torch without one counts as without the instructions.
    has_bfloat16 = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)
    return Processor(
        vendor=vendor,
        has_avx512=torch.backends.cpu.get_cpu_capability() == "AVX512",
        has_bfloat16=bool(has_bfloat16()),
        has_amx=bool(has_amx()),
        has_mkl=cast(Any, torch.backends.mkl).is_available(),
    )


def gains_from_onednn(dtype: torch.dtype, processor: Processor) -> bool:
    """Return whether packed layers of oneDNN are faster than torch's functions on a processor.

    Measured with MiniLM on one core, packed layers against torch's functions (times of bert-score, or seconds):

    | precision | processor | gains | figures |
    |---|---|---|---|
    | float32 | Intel with AVX512 | no | 300 pairs 1.65 and 1.60 times, one pair .96 and 1.10, a reward of 16 .90 |
    | float32 | others with AVX512 | yes | 400 pairs 2.7 and 5.2 s (AMD Zen 5); 3.8 times bert-score (Zen 4) |
    | float32 | without AVX512 | no | MKL is faster |
    | bfloat16 | Intel with AMX | yes | torch packs the weight at every call |
    | bfloat16 | Intel without AMX | no | not measured |
    | bfloat16 | others | yes | 400 pairs 1.72 and 1.84 s, 470 and 430 GFLOP/s (Zen 5) |
    | both | torch without MKL | yes | |
    """
    is_intel = processor.vendor == "GenuineIntel"
    if dtype == torch.float32:
        has_unused_avx512 = processor.has_avx512 and not is_intel
        return has_unused_avx512 or not processor.has_mkl
    if dtype == torch.bfloat16:
        return processor.has_bfloat16 and (processor.has_amx or not is_intel)
    return False


@cache
def prefers_onednn(dtype: torch.dtype, switch: str | None) -> bool:
    """Return whether oneDNN multiplies matrices of a dtype, according to the switch, torch and this processor.

    Args:
        dtype: dtype of both matrices.
        switch: value of the environment variable, which is part of the cache's key.
    """
    # torch has no public functions: `_linear_pointwise` is a linear layer, and `_reorder_linear_weight` packs a weight.
    operators = torch.ops.mkldnn
    has_operators = hasattr(operators, "_linear_pointwise") and hasattr(operators, "_reorder_linear_weight")
    is_available = has_operators and cast(Any, torch.backends.mkldnn).is_available()
    if switch == "0" or not is_available:
        return False
    if switch == "1":
        has_bfloat16 = dtype == torch.bfloat16 and this_processor().has_bfloat16
        return dtype == torch.float32 or has_bfloat16
    return gains_from_onednn(dtype, this_processor())


def can_use_onednn(rows: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN multiplies two matrices, shapes (..., features) and (outputs, features)."""
    # Ask this first, because torch.compile would specialize the graph on the sizes below.
    if not is_eager():
        return False
    # Subclasses of Tensor have their own products.
    is_plain = type(rows) is Tensor and rows.numel() > 0 and rows.dtype == weight.dtype
    if not is_plain:
        return False
    if weight.device.type != "cpu" or not cast(Any, torch.backends.mkldnn).enabled:
        return False
    return prefers_onednn(weight.dtype, os.environ.get(_SWITCH))


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None) -> Tensor:
    r"""Return :math:`x W^\top + b` without a gradient, computed by oneDNN if possible.

    Args:
        rows: x, shape (rows, features).
        weight: W, shape (outputs, features).
        bias: b, shape (outputs,).
        packed: a copy of W that oneDNN has packed.
    """
    if packed is None and not can_use_onednn(rows, weight):
        return functional.linear(rows, weight, bias)
    if len(rows) > _MAX_ROWS:
        parts = torch.split(rows, _MAX_ROWS)
        return torch.cat([linear(part, weight, bias, packed) for part in parts])
    # Pad the rows to one of few sizes, because oneDNN compiles a kernel for every number of rows.
    padding = _PADDING[len(rows)]
    padded = rows
    if padding > 0:
        padded = functional.pad(rows, (0, 0, 0, padding))  # (rows + padding, features)
    # Copy expanded rows, such as the gradient of a sum, because oneDNN multiplies a matrix with stride 0 by a slow path
    # (https://github.com/pytorch/pytorch/pull/114939).
    is_expanded = 0 in padded.stride()
    if is_expanded:
        padded = padded.contiguous()
    factor = weight if packed is None else packed
    product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, factor, bias, "none", [], "")
    if padding > 0:
        # Remove the rows of the padding, which are the last ones: resize_ to fewer rows leaves the leading rows as they
        # are. Do not return a view, because autograd refuses in-place changes of a custom function's view, and a model
        # may change its hidden states in place.
        product.resize_(len(rows), len(weight))
    return product


class FrozenLinear(torch.autograd.Function):
    """:func:`linear` with a gradient for the rows, which oneDNN computes too.

    Without it, a step of the loss of 8 rows takes 1.07, 1.15 and 1.16 times as long (three runs, MiniLM with 5 layers
    in float32 on one thread), and 1.15 and 1.21 times if torch multiplies expectations too. One row gains nothing.
    MKL was limited to AVX2, which it uses on AMD.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, packed: Tensor | None) -> Tensor:
        """Return the output."""
        ctx.save_for_backward(weight)
        return linear(rows, weight, bias, packed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient with respect to the rows."""
        # Raise an error that names the cause: the one of torch's attention, which has no second derivative, does not.
        if torch.is_grad_enabled():
            raise RuntimeError("frozen layers cannot be differentiated twice. Leave out create_graph=True")
        (weight,) = ctx.saved_tensors
        return linear(grad, weight.t()), None, None, None


class PackedLinear(nn.Linear):
    """A frozen ``nn.Linear`` with a packed copy of its weight on a CPU. On other devices it is a plain layer."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output."""
        is_trainable = self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
        is_trained = is_trainable and torch.is_grad_enabled()
        if is_trained or not can_use_onednn(input, self.weight):
            return super().forward(input)
        needs_gradient = torch.is_grad_enabled() and input.requires_grad
        multiply = FrozenLinear.apply if needs_gradient else linear
        rows = input.reshape(-1, self.in_features)
        output: Tensor = multiply(rows, self.weight, self.bias, self._packed)  # (rows, out_features)
        return output.view(*input.shape[:-1], self.out_features)

    @cached_property
    def _packed(self) -> Tensor:
        # An inference tensor could not be saved for a backward pass.
        with torch.inference_mode(False), torch.no_grad():
            return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _MAX_ROWS))

    def __getstate__(self) -> dict[str, Any]:
        # A copy packs its own weight, because it may be moved to another device or dtype.
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def find_packed_weight(model: nn.Module) -> Tensor | None:
    """Return the weight of the first packed layer of a model, or ``None`` if it has none."""
    for module in model.modules():
        if type(module) is PackedLinear:
            return module.weight.detach()
    return None


def missing_rows(packed_weight: Tensor | None, num_rows: int) -> int:
    """Return how many rows each packed layer would add to a matrix, and remove from its product.

    If they are added once, before the first layer, each layer avoids two copies. Without that, 40 pairs in bfloat16
    take 1.13 and 1.14 times as long, and 300 pairs 1.07 and 1.14 times (two runs, MiniLM with 5 layers on one thread,
    Intel AMX). One pair gains nothing.
    """
    # The weight stands in for the rows, whose type and dtype are the same.
    if packed_weight is None or not can_use_onednn(packed_weight, packed_weight):
        return 0
    # Longer matrices are split into parts of _MAX_ROWS rows, and only the last part is padded.
    return _PADDING[num_rows % _MAX_ROWS]


def adapt_layers(model: nn.Module) -> None:
    """Make the linear layers and GELU of a frozen model faster on a CPU, in place. Nothing else may use the model.

    Linear layers become packed ones. Without a gradient, GELU overwrites its input, which saves a tensor of four times
    the model's width.
    """
    min_size = _MIN_WEIGHT_SIZE
    if os.environ.get(_SWITCH) == "1":
        min_size = 0
    for module in model.modules():
        if type(module) is nn.Linear:
            weight = module.weight.detach()
            if weight.numel() >= min_size and can_use_onednn(weight, weight):
                # The parameters stay the same objects.
                cast(Any, module).__class__ = PackedLinear
        elif getattr(module, "act", None) is functional.gelu:  # GELUActivation of transformers
            cast(Any, module).act = _gelu


def _gelu(states: Tensor) -> Tensor:
    """Return GELU, computed in place on a CPU if no gradient needs the input."""
    needs_input = torch.is_grad_enabled() and states.requires_grad
    if states.device.type != "cpu" or needs_input or not is_eager():
        return functional.gelu(states)
    return cast(Tensor, torch.ops.aten.gelu_(states))
