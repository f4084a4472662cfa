"""Import time of the package in addition to torch, transformers and torchmetrics."""

from __future__ import annotations

import subprocess
import sys

from examples.benchmarks.options import Options
from examples.benchmarks.rounds import Figure

__all__ = ["LIMIT_S", "measure", "seconds_of_import"]

LIMIT_S = 0.15

_BASE = "import torch, transformers, torchmetrics, torchmetrics.text"
# Both packages resolve names on first use.
_OURS = "import bertscore_tm; from bertscore_tm import BERTScore, bert_score"
_PARENT_OF_MODELS = "from transformers import PreTrainedModel"


def measure(options: Options) -> list[Figure]:
    """Time imports, each in a new interpreter that has already imported torch, transformers and torchmetrics.

    transformers imports the base class of its models, and much of torch, on first use; the second figure excludes this.

    Args:
        options: settings; only ``rounds`` is used.

    Returns:
        Seconds of importing the package; of the package after the base class of models; and of ``bert-score``.
    """
    statements = {
        "package": (_BASE, _OURS),
        "package, after transformers.PreTrainedModel": (f"{_BASE}; {_PARENT_OF_MODELS}", _OURS),
        "bert-score": (_BASE, "import bert_score"),
    }
    # Compiles all files.
    seconds_of_import(_BASE, "; ".join(statement for _, statement in statements.values()))
    seconds: dict[str, list[float]] = {name: [] for name in statements}
    names = list(statements)
    for number in range(options.rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            seconds[name].append(seconds_of_import(*statements[name]))
    targets = {"package": LIMIT_S}
    return [Figure(f"importing {name}", seconds[name], "s", targets.get(name), at_most=True) for name in statements]


def seconds_of_import(before: str, statement: str) -> float:
    """Time a statement in a new interpreter.

    Args:
        before: statements that run first, untimed.
        statement: the timed statement.

    Returns:
        Seconds.

    Raises:
        subprocess.CalledProcessError: an import fails; its error is on standard error.

    Example:
        >>> seconds_of_import("import sys", "import unittest") > 0
        True
    """
    code = f"import time\n{before}\nbegan = time.perf_counter()\n{statement}\nprint(time.perf_counter() - began)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return float(ended.stdout.splitlines()[-1])
