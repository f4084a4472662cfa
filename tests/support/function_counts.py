"""Count the functions of the package that a call crosses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import bertscore_tm
from bertscore_tm import callbacks, losses

_FOLDERS = tuple(str(Path(str(package.__file__)).parent) for package in (bertscore_tm, losses, callbacks))


@dataclass(frozen=True)
class CrossedFunctions:
    """Functions and methods of the package that a call runs through.

    Args:
        names: each function's file and qualified name. A lambda or a comprehension is part of the function around it.
        depth: largest number of them that are active at the same time.
    """

    names: frozenset[str]
    depth: int

    def __str__(self) -> str:
        return "\n".join([f"{len(self.names)} functions, {self.depth} deep:", *sorted(self.names)])


def functions_crossed(call: Callable[[], Any]) -> CrossedFunctions:
    """Run a call, and return the functions that it crosses in this thread."""
    names: set[str] = set()
    depth = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal depth
        if event == "call" and _is_function(frame.f_code):
            names.add(f"{Path(frame.f_code.co_filename).name} {frame.f_code.co_qualname}")
            depth = max(depth, _count_active(frame))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return CrossedFunctions(frozenset(names), depth)


def _is_function(code: CodeType) -> bool:
    return code.co_filename.startswith(_FOLDERS) and not code.co_name.startswith("<")


def _count_active(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += _is_function(frame.f_code)
        frame = frame.f_back
    return count
