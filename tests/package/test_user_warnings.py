"""Warnings point to the user's line, through frames of the package, torch and torchmetrics."""

import warnings
from types import FunctionType

import pytest
import torch
import torchmetrics

from bertscore_tm.utilities.user_warnings import warn_user


def in_module(name, function):
    """Return the function as if its module had this name."""
    return FunctionType(function.__code__, globals() | {"__name__": name}, closure=function.__closure__)


def line_of_warning(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (warning,) = caught
    assert (str(warning.message), warning.category) == ("careful", UserWarning)
    return warning.filename, warning.lineno


def warn():
    warn_user("careful")


class Module(torch.nn.Module):
    """A module of the package."""

    forward = in_module("bertscore_tm.losses.example", lambda self: warn_user("careful"))


class Metric(torchmetrics.Metric):
    """A metric of the package, which torchmetrics calls."""

    full_state_update = False
    update = in_module("bertscore_tm.metric", lambda self: warn_user("careful"))
    compute = in_module("bertscore_tm.metric", lambda self: torch.tensor(0.0))


@pytest.mark.parametrize("call", [in_module("bertscore_tm", warn), Module(), Metric().update, Metric().forward])
def test_frames_of_the_package_and_its_callers_are_skipped(call):
    def user():
        call()

    assert line_of_warning(user) == (__file__, user.__code__.co_firstlineno + 1)


@pytest.mark.parametrize("name", ["bertscore_tm_extras", "examples.bertscore_tm"])
def test_other_modules_are_users(name):
    assert line_of_warning(in_module(name, warn)) == (__file__, warn.__code__.co_firstlineno + 1)
