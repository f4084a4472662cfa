"""Linear layers of a frozen model on a CPU: the faster library for products, and activations computed in place.

torch multiplies float32 matrices by MKL, which uses AVX512 on processors of Intel only, and repacks bfloat16 weights at
every call. oneDNN, which torch bundles, uses AVX512 on all, and can keep a frozen weight packed. The environment
variable ``BERTSCORE_TM_ONEDNN`` is the switch: with ``0`` torch's functions are used, with ``1`` oneDNN on every
processor and for layers of every size; by default oneDNN where it is faster, see :func:`gains_from_onednn`.
"""

import os
import platform
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

# oneDNN compiles a kernel for every number of rows, about half a megabyte, and keeps it. So matrices are cut into
# pieces of at most this many rows, and padded to one of few sizes: up to each limit, a multiple of its step.
_MAX_ROWS = 2048
_ROW_STEPS = {32: 8, 64: 16, 512: 32, _MAX_ROWS: 128}
_PADDING = [-rows % next(_ROW_STEPS[limit] for limit in _ROW_STEPS if rows <= limit) for rows in range(_MAX_ROWS + 1)]
# A packed layer takes 16 us longer to call, and gains from 64 rows of some 180 numbers on (AMD Zen 5, float32).
_FEWEST_WEIGHTS = 2**15
_SWITCH = "BERTSCORE_TM_ONEDNN"


def is_eager() -> bool:
    """Check that code is neither compiled nor transformed by ``torch.func``, which custom gradients do not support."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


class Processor(NamedTuple):
    """A processor's vendor, as it names itself, and what torch uses of it: AVX512, bfloat16, Intel's AMX, and MKL."""

    vendor: str
    has_avx512: bool
    has_bfloat16: bool
    has_amx: bool
    has_mkl: bool


@cache
def this_processor() -> Processor:
    """Return this processor, as far as the environment variable ``ATEN_CPU_CAPABILITY`` lets torch use it."""
    # Linux names the vendor in a file; Windows does in the processor's name.
    file, mkl = Path("/proc/cpuinfo"), cast(Any, torch.backends.mkl)
    names = file.read_text(encoding="utf-8") if file.exists() else platform.processor()
    vendor = next((vendor for vendor in ("GenuineIntel", "AuthenticAMD") if vendor in names), "")
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    has_bfloat16 = bool(getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", bool)())
    has_amx = bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())
    return Processor(vendor, has_avx512, has_bfloat16, has_amx, mkl.is_available())


def gains_from_onednn(dtype: torch.dtype, processor: Processor) -> bool:
    """Check whether packed layers of oneDNN are faster than torch's functions on a processor.

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
        return not processor.has_mkl or (processor.has_avx512 and not is_intel)
    return dtype == torch.bfloat16 and processor.has_bfloat16 and (processor.has_amx or not is_intel)


@cache
def prefers_onednn(dtype: torch.dtype, switch: str | None) -> bool:
    """Check whether oneDNN multiplies matrices of a dtype, by the switch and by what torch and this processor have.

    torch has no public function for a packed weight: ``_linear_pointwise`` is a linear layer,
    ``_reorder_linear_weight`` packs.
    """
    operators, backend = torch.ops.mkldnn, cast(Any, torch.backends.mkldnn)
    has_operators = all(hasattr(operators, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    if switch == "0" or not has_operators or not backend.is_available():
        return False
    if switch == "1":
        return dtype == torch.float32 or (dtype == torch.bfloat16 and this_processor().has_bfloat16)
    return gains_from_onednn(dtype, this_processor())


def can_use_onednn(rows: Tensor, weight: Tensor) -> bool:
    """Check whether oneDNN is to multiply two matrices, shapes (..., features) and (outputs, features)."""
    if not (is_eager() and type(rows) is Tensor and rows.numel() and rows.dtype == weight.dtype):
        return False
    if weight.device.type != "cpu" or not cast(Any, torch.backends.mkldnn).enabled:
        return False
    return prefers_onednn(weight.dtype, os.environ.get(_SWITCH))


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None) -> Tensor:
    r"""Return :math:`x W^\top + b`, without gradient, by oneDNN where possible, such as where W has a packed copy."""
    if packed is None and not can_use_onednn(rows, weight):
        return functional.linear(rows, weight, bias)
    if len(rows) > _MAX_ROWS:
        return torch.cat([linear(part, weight, bias, packed) for part in torch.split(rows, _MAX_ROWS)])
    padding = _PADDING[len(rows)]
    padded = functional.pad(rows, (0, 0, 0, padding)) if padding else rows  # (rows + padding, features)
    if 0 in padded.stride():
        padded = padded.contiguous()
    factor = weight if packed is None else packed
    product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, factor, bias, "none", [], "")
    # Not a view, since a model may change the output of a function with a gradient in place.
    return product.resize_(len(rows), len(weight)) if padding else product


class FrozenLinear(torch.autograd.Function):
    """:func:`linear` with a gradient for the rows, which is computed by oneDNN too.

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
        # torch's attention on a CPU has no second derivative either, whose error would not name the cause.
        if torch.is_grad_enabled():
            raise RuntimeError("frozen layers cannot be differentiated twice: leave out create_graph=True")
        (weight,) = ctx.saved_tensors
        return linear(grad, weight.t()), None, None, None


class PackedLinear(nn.Linear):
    """A frozen ``nn.Linear`` that keeps a packed copy of its weight for a CPU, and elsewhere is a plain one."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the output."""
        trained = self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
        if not can_use_onednn(input, self.weight) or (trained and torch.is_grad_enabled()):
            return super().forward(input)
        multiply = FrozenLinear.apply if torch.is_grad_enabled() and input.requires_grad else linear
        output: Tensor = multiply(input.reshape(-1, self.in_features), self.weight, self.bias, self._packed)
        return output.view(*input.shape[:-1], self.out_features)

    @cached_property
    def _packed(self) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _MAX_ROWS))

    def __getstate__(self) -> dict[str, Any]:
        # A copy packs its weight itself, as it may be moved to another device or dtype.
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def find_packed_weight(model: nn.Module) -> Tensor | None:
    """Return the weight of the first packed layer of a model, or ``None`` if it has none."""
    for module in model.modules():
        if type(module) is PackedLinear:
            return module.weight.detach()
    return None


def missing_rows(packed_weight: Tensor | None, num_rows: int) -> int:
    """Return how many rows each packed layer would add to a matrix, and drop from its product.

    Adding them once, before the first layer, avoids two copies in each layer. Otherwise 40 pairs in bfloat16 take 1.13
    and 1.14 times as long and 300 pairs 1.07 and 1.14 times (two runs, MiniLM with 5 layers on one thread, Intel AMX).
    One pair gains nothing.
    """
    if packed_weight is None or not can_use_onednn(packed_weight, packed_weight):
        return 0
    return _PADDING[num_rows % _MAX_ROWS]


def adapt_layers(model: nn.Module) -> None:
    """Let the layers of a frozen model, which nothing else uses, compute faster on a CPU, in place.

    Linear layers become packed ones; GELU replaces the output of the layer before it, without the gradient, and so
    spares a tensor of four times the model's width.
    """
    fewest = 0 if os.environ.get(_SWITCH) == "1" else _FEWEST_WEIGHTS
    for module in model.modules():
        weight = module.weight.detach() if type(module) is nn.Linear else None
        if weight is not None and weight.numel() >= fewest and can_use_onednn(weight, weight):
            cast(Any, module).__class__ = PackedLinear
        elif getattr(module, "act", None) is functional.gelu:  # GELUActivation of transformers
            cast(Any, module).act = _gelu


def _gelu(states: Tensor) -> Tensor:
    """Return GELU, in place of the input on a CPU where no gradient needs it."""
    if states.device.type != "cpu" or not is_eager() or (torch.is_grad_enabled() and states.requires_grad):
        return functional.gelu(states)
    return cast(Tensor, torch.ops.aten.gelu_(states))
