"""A second device that computes on the CPU, for machines without an accelerator.

As on an accelerator, tensors of two devices must not meet in an operation, except for scalars of the CPU. Counted are
the kernels that an accelerator would launch, and what the host would wait for: copies from or to it, unless they are
asynchronous, and results whose shape depends on values. Attention is one kernel, also of packed texts in bfloat16.
Registered once per process, for good: use it in a process that does nothing else.
"""

from __future__ import annotations

import traceback
from collections import Counter
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

from bertscore_tm.encoder import forward as forward_module

NAME = "standin"

# How often the host waited, by who caused it (this package or a dependency) and the operation.
waits: Counter[tuple[str, str]] = Counter()
# Kernels by operation.
launches: Counter[str] = Counter()

_CPU = torch.device("cpu")
_COPIES = {"aten::copy_", "aten::_to_copy"}
_VALUES = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2"}
# Operations without a kernel: views, allocations, and the reading of a value.
_NO_KERNEL = {
    f"aten::{name}"
    for name in (
        *("view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze"),
        *("detach", "alias", "as_strided", "unbind", "split", "split_with_sizes", "diagonal", "lift_fresh", "unfold"),
        *("_reshape_alias", "unflatten", "empty", "empty_strided", "new_empty", "new_empty_strided", "empty_like"),
        *("resize_", "_local_scalar_dense", "equal"),
    )
}
# Operations of several kernels.
_KERNELS = {"aten::nonzero": 3, "aten::_unique2": 6, "aten::sort": 2, "aten::argsort": 2, "aten::bincount": 3}
# Without an argument that is a tensor, these are not dispatched by its class.
_FACTORIES = (
    *("arange", "arange.start", "arange.start_step", "empty.memory_format", "empty_strided", "eye", "full", "linspace"),
    *("ones", "rand", "randint", "randint.low", "randn", "randperm", "scalar_tensor", "tril_indices", "zeros"),
)
_libraries: list[torch.library.Library] = []


class StandInTensor(Tensor):
    """A tensor of the stand-in device; its values are in a tensor of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> StandInTensor:
        made: StandInTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"StandInTensor({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.clone()  # torch would copy the storage, which is empty

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, *args, **(kwargs or {}))


def _run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation of torch on the tensors inside, and record kernels, copies and waits."""
    name = func._schema.name
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    foreign = [tensor for tensor in tensors if not isinstance(tensor, StandInTensor) and tensor.ndim > 0]
    on_device = any(isinstance(tensor, StandInTensor) for tensor in tensors)
    target = kwargs.get("device")
    if name in _COPIES:
        source = args[1] if name == "aten::copy_" else args[0]
        into_device = isinstance(args[0], StandInTensor) if name == "aten::copy_" else target != _CPU
        is_asynchronous = kwargs.get("non_blocking") or args[2:] == (True,)
        between = into_device != isinstance(source, StandInTensor)
        waits_for_values = between and not is_asynchronous
        launches[name] += not between
    elif on_device and foreign:
        raise RuntimeError(f"{name} got tensors of {NAME} and of {foreign[0].device}")
    else:
        indices = [value for value in tree_flatten(args[1:2])[0] if isinstance(value, Tensor)]
        by_mask = name.startswith("aten::index") and any(index.dtype == torch.bool for index in indices)
        without_size = name == "aten::repeat_interleave" and kwargs.get("output_size") is None
        waits_for_values = name in _VALUES or by_mask or without_size
        if name not in _NO_KERNEL and (target is None or torch.device(target) != _CPU):
            launches[name] += _KERNELS.get(name, 1)
    if waits_for_values:
        frames = [frame.filename for frame in traceback.extract_stack() if "/torch/" not in frame.filename]
        waits["dependency" if "/transformers/" in frames[-3] else "package", name] += 1
    inner_kwargs = tree_map(_unwrap, kwargs)
    if target is not None:
        inner_kwargs["device"] = _CPU
    inner_kwargs.pop("pin_memory", None)
    out = func(*tree_map(_unwrap, args), **inner_kwargs)
    if target is not None and torch.device(target) == _CPU:
        return out
    if name == "aten::copy_":
        return args[0]
    wrapped = tree_map(lambda value: StandInTensor(value) if isinstance(value, Tensor) else value, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if on_device else wrapped


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy values between the device and the CPU."""
    _run(torch.ops.aten.copy_.default, target, source, non_blocking)
    return target


def _unwrap(value: Any) -> Any:
    """Return the tensor inside a tensor of the device, or the CPU instead of a device."""
    if isinstance(value, StandInTensor):
        return value.inner
    return _CPU if isinstance(value, torch.device) else value


def _attend(*states: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """Attend in one kernel, and one for the mask."""
    plain = all(isinstance(state, StandInTensor) for state in states) and not states[0].requires_grad
    if not plain:
        return _attention(*states, attn_mask=attn_mask, **options)
    launches["attention"] += 1 + (attn_mask is not None)
    return StandInTensor(_attention(*map(_unwrap, states), attn_mask=_unwrap(attn_mask), **options))


def _attend_within(
    *states: Tensor, window_size: tuple[int, int] = (-1, -1), scale: float | None = None, enable_gqa: bool = False
) -> Tensor:
    """Attend within each of the texts of a row, as torch's kernel for different lengths does, in two kernels."""
    *states, ends, _, _, _ = states
    launches["attention"] += 2
    ends, attended = _unwrap(ends).tolist(), []
    for start, end in pairwise(ends):
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        before, after = (end if size < 0 else size for size in window_size)
        part = [_unwrap(state)[start:end].float().transpose(0, 1) for state in states]  # (heads, tokens, size) each
        mask = (distance <= before) & (distance >= -after)
        attended.append(_attention(*part, attn_mask=mask, scale=scale, enable_gqa=enable_gqa).transpose(0, 1))
    return StandInTensor(torch.cat(attended).to(states[0].dtype))


_attention = torch.nn.functional.scaled_dot_product_attention


# What torch asks of a device's module.
_MODULE = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    current_device=lambda: 0,
    device_count=lambda: 1,
    manual_seed_all=lambda seed: None,
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
    _is_in_bad_fork=lambda: False,
)


def register() -> torch.device:
    """Register the device and return it."""
    if not _libraries:
        # torch 2.10 and later; the tests for older versions do without it.
        from torch.nn.attention import varlen
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME, backend_module=_MODULE)
        library = torch.library.Library("aten", "IMPL")
        library.impl("_copy_from", _copy_from, "PrivateUse1")
        for factory in _FACTORIES:
            name, _, overload = factory.partition(".")
            operator = getattr(getattr(torch.ops.aten, name), overload or "default")
            library.impl(factory, partial(_run, operator), "PrivateUse1")
        _libraries.append(library)
        torch.nn.functional.scaled_dot_product_attention = _attend
        forward_module.has_attention_kernel = lambda device, dtype: device.type == NAME and dtype == torch.bfloat16
        varlen.varlen_attn = _attend_within
    return torch.device(NAME, 0)
