"""Protected names of torchmetrics.Metric that the metric uses: a torchmetrics without one of them fails here first."""

from __future__ import annotations

import ast
from pathlib import Path

from torchmetrics import SumMetric

import bertscore_tm.metric
from bertscore_tm.metric import list_states

# Each has its reason in the docstring of the file.
USED = {
    "list_states.py": {
        "_apply",
        "_computed",
        "_forward_cache",
        "_load_from_state_dict",
        "_reduce_states",
        "_update_count",
        "_wrap_compute",
    }
}


def protected(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def used_names(path: Path) -> set[str]:
    """Names of attributes and of methods in a file."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_protected_names_of_torchmetrics():
    metric = SumMetric()
    of_torchmetrics = protected({*dir(metric), *vars(metric)})
    assert of_torchmetrics >= USED["list_states.py"]
    folder = Path(bertscore_tm.metric.__file__).parent
    found = {path.name: used_names(path) & of_torchmetrics for path in folder.glob("*.py")}
    assert {name: names for name, names in found.items() if names} == USED


def test_every_protected_name_has_its_reason():
    lines = [line for line in (list_states.__doc__ or "").splitlines() if line.startswith("* ")]
    assert {line.split("``")[1] for line in lines} == USED["list_states.py"]
    assert all(len(line.partition(": ")[2]) > 20 for line in lines)
