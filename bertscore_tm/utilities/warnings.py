"""Warnings that point to the user's line, however deep in the package they are raised."""

import sys
import warnings

# torch and torchmetrics call the package from within: torchmetrics.Metric.forward calls update.
_SKIPPED_PACKAGES = frozenset({"bertscore_tm", "torch", "torchmetrics"})


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the first caller outside this package, torch and torchmetrics."""
    # skip_file_prefixes of warnings.warn needs Python 3.12.
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED_PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
