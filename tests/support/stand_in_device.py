"""A second device that computes on the CPU, for machines without an accelerator.

As on an accelerator, tensors of two devices must not meet in an operation, except for scalars of the CPU. What an
accelerator would have to wait for is counted: copies to the host, and results whose shape depends on values. Registered
once per process, for good: use it in a process that does nothing else.
"""

from __future__ import annotations

import traceback
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

NAME = "standin"

# How often the host waited, by who caused it (this package or a dependency) and the operation.
waits: Counter[tuple[str, str]] = Counter()

_CPU = torch.device("cpu")
_COPIES = {"aten::copy_", "aten::_to_copy"}
_VALUES = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2"}
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

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _wait(name: str) -> None:
    frames = [frame.filename for frame in traceback.extract_stack() if "/torch/" not in frame.filename]
    by_package = "/transformers/" not in frames[-4]
    waits["package" if by_package else "dependency", name] += 1


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    foreign = [tensor for tensor in tensors if not isinstance(tensor, StandInTensor) and tensor.ndim > 0]
    on_device = any(isinstance(tensor, StandInTensor) for tensor in tensors)
    target = kwargs.get("device")
    if name in _COPIES:
        into_host = name == "aten::copy_" and not isinstance(args[0], StandInTensor)
        waits_for_values = into_host or (name == "aten::_to_copy" and target == _CPU)
    elif on_device and foreign:
        raise RuntimeError(f"{name} got tensors of {NAME} and of {foreign[0].device}")
    else:
        indices = [value for value in tree_flatten(args[1:2])[0] if isinstance(value, Tensor)]
        by_mask = name.startswith("aten::index") and any(index.dtype == torch.bool for index in indices)
        without_size = name == "aten::repeat_interleave" and kwargs.get("output_size") is None
        waits_for_values = name in _VALUES or by_mask or without_size
    if waits_for_values:
        _wait(name)
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
    _run(torch.ops.aten.copy_.default, (target, source, non_blocking), {})
    return target


def _create(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(func, args, kwargs)


def _unwrap(value: Any) -> Any:
    if isinstance(value, StandInTensor):
        return value.inner
    return _CPU if isinstance(value, torch.device) else value


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
        # torch 2.9 and later; the tests for older versions do without it.
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME, backend_module=_MODULE)
        library = torch.library.Library("aten", "IMPL")
        library.impl("_copy_from", _copy_from, "PrivateUse1")
        for factory in _FACTORIES:
            name, _, overload = factory.partition(".")
            operator = getattr(getattr(torch.ops.aten, name), overload or "default")
            library.impl(factory, partial(_create, operator), "PrivateUse1")
        _libraries.append(library)
    return torch.device(NAME, 0)
