"""How long importing the package takes beyond the packages that it is made for."""

from __future__ import annotations

import subprocess
import sys

from examples.benchmarks.options import Options
from examples.benchmarks.rounds import Figure

__all__ = ["LIMIT_S", "measure", "seconds_of_import"]

LIMIT_S = 0.15

_BASE = "import torch, transformers, torchmetrics, torchmetrics.text"
# Names are resolved when they are asked for, both of ours and those of transformers.
_OURS = "import bertscore_tm; from bertscore_tm import BERTScore, bert_score"
_PARENT_OF_MODELS = "from transformers import PreTrainedModel"


def measure(options: Options) -> list[Figure]:
    """Time imports, each in a new interpreter that has imported torch, transformers and torchmetrics before.

    transformers imports the parent class of its models, and much of torch with it, no sooner than somebody asks for a
    model; the second figure leaves that out.

    Args:
        options: settings, of which only the rounds matter here.

    Returns:
        Seconds of importing the package; of the package where the parent class of models has been imported before; and
        of ``bert-score``.
    """
    ways = {
        "package": (_BASE, _OURS),
        "package, after transformers.PreTrainedModel": (f"{_BASE}; {_PARENT_OF_MODELS}", _OURS),
        "bert-score": (_BASE, "import bert_score"),
    }
    # Writes the compiled files.
    seconds_of_import(_BASE, "; ".join(statement for _, statement in ways.values()))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(options.rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            seconds[name].append(seconds_of_import(*ways[name]))
    targets = {"package": LIMIT_S}
    return [Figure(f"importing {name}", seconds[name], "s", targets.get(name), at_most=True) for name in ways]


def seconds_of_import(before: str, statement: str) -> float:
    """Time a statement in a new interpreter.

    Args:
        before: what it runs first, untimed.
        statement: what is timed.

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
