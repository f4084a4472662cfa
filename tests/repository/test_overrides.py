"""Methods of torchmetrics' Metric that the metric overrides, and the versions of torchmetrics that they hold for."""

import inspect
import re
from pathlib import Path

import pytest
import torchmetrics
from torchmetrics import Metric

from bertscore_tm import BERTScore

# The versions from that in tests/lowest.txt to this one were run. Before a newer one is added here, compare its Metric
# with the reasons at the overrides in bertscore_tm/metric/bertscore.py, and run all tests with it: `make newest`.
NEWEST = (1, 9)
# Parameters in all of these versions. torchmetrics 1.4 and 1.5 have no merge_state.
OVERRIDDEN = {
    "metric_state": ["self"],
    "forward": ["self", "args", "kwargs"],
    "reset": ["self"],
    "unsync": ["self", "should_unsync"],
    "merge_state": ["self", "incoming_state"],
    "_sync_dist": ["self", "dist_sync_fn", "process_group"],
    "_load_from_state_dict": [
        "self",
        "state_dict",
        "prefix",
        "local_metadata",
        "strict",
        "missing_keys",
        "unexpected_keys",
        "error_msgs",
    ],
    "_wrap_compute": ["self", "compute"],
    "_apply": ["self", "fn", "exclude_state"],
}
# torchmetrics expects these of every metric.
OF_EVERY_METRIC = {"__init__", "update", "compute", "plot"}


def function_of(owner, name):
    """The function of a method or a property."""
    member = vars(owner)[name]
    return member.fget if isinstance(member, property) else member


def test_the_overrides_were_run_with_this_torchmetrics():
    lines = (Path(__file__).parents[1] / "lowest.txt").read_text()
    major, minor = re.search(r"^torchmetrics==(\d+)\.(\d+)\.", lines, re.MULTILINE).groups()
    lowest = (int(major), int(minor))
    installed = tuple(int(number) for number in torchmetrics.__version__.split(".")[:2])

    assert lowest <= installed <= NEWEST, f"torchmetrics {torchmetrics.__version__} was not run yet, see NEWEST"


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_has_the_expected_parameters(name):
    if not hasattr(Metric, name):
        assert name == "merge_state"
        pytest.skip("this torchmetrics has no merge_state")
    assert list(inspect.signature(function_of(Metric, name)).parameters) == OVERRIDDEN[name]


def test_every_override_is_listed_and_has_a_reason():
    functions = {name for name, member in vars(BERTScore).items() if inspect.isfunction(member)}
    properties = {name for name, member in vars(BERTScore).items() if isinstance(member, property)}
    overrides = {name for name in functions | properties if hasattr(Metric, name)}

    assert overrides - OF_EVERY_METRIC == {name for name in OVERRIDDEN if hasattr(Metric, name)}
    for name in OVERRIDDEN:
        assert "# Overridden because " in inspect.getsource(function_of(BERTScore, name)), name
