"""Functions that ``torch.compile`` does not compile."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """Exclude a function from ``torch.compile``, which would compile it anew for each number of texts and tokens."""
    return cast(Function, torch.compiler.disable(function))  # type: ignore[no-untyped-call]
