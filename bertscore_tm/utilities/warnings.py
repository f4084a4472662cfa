"""Warnings that point to the user's line."""

import sys
import warnings
from types import FrameType

# torch and torchmetrics are skipped too, because they call the package: torchmetrics.Metric.forward calls update.
_SKIPPED_PACKAGES = frozenset({"bertscore_tm", "torch", "torchmetrics"})


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the first caller outside this package, torch and torchmetrics."""
    # Count the stack level here, because the argument skip_file_prefixes of warnings.warn needs Python 3.12.
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and _package(frame) in _SKIPPED_PACKAGES:
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame: FrameType) -> str:
    """Return the name of the package whose code a frame runs."""
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0]
