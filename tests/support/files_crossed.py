"""The files of the package that a call passes through."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import bertscore_tm
from bertscore_tm import callbacks, losses


def files_crossed(call: Callable[[], Any]) -> set[str]:
    """Return the names of our files in which a function is called, such as ``core/matching.py``."""
    roots = [Path(str(package.__file__)).parent for package in (bertscore_tm, losses, callbacks)]
    found = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    paths = [Path(name) for name in found]
    return {"/".join(path.parts[-2:]) for path in paths if any(root in path.parents for root in roots)}
