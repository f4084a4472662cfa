"""Checks of settings: the value in each error, and what counts as an integer."""

from typing import Literal

import numpy as np
import pytest
import torch

from bertscore_tm.utilities.checks import (
    as_integer,
    full_class_name,
    require_at_least,
    require_choice,
    require_positive,
    resolve_callable,
    shorten,
)

Color = Literal["red", "green"]


def test_a_choice_is_one_of_a_literal():
    require_choice("color", "green", Color)

    with pytest.raises(ValueError, match=r"^color='blue' is not one of 'red', 'green'$"):
        require_choice("color", "blue", Color)


def test_a_callable_is_given_or_named():
    assert resolve_callable("matching", "max", {"max": max}) is max
    assert resolve_callable("matching", min, {"max": max}) is min

    with pytest.raises(ValueError, match=r"^matching='mean' is not a callable or one of 'max'$"):
        resolve_callable("matching", "mean", {"max": max})


def test_a_setting_may_equal_its_least_value():
    require_at_least("layer", 1, 1)

    with pytest.raises(ValueError, match=r"^layer must be at least 1, got 0$"):
        require_at_least("layer", 0, 1)


@pytest.mark.parametrize("value", [0, -1.5, float("nan")])
def test_numbers_that_are_not_positive_are_refused(value):
    require_positive("temperature", 1e-9)

    with pytest.raises(ValueError, match=rf"^temperature must be above 0, got {value}$"):
        require_positive("temperature", value)


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3), torch.tensor([3])])
def test_integers_of_other_libraries_become_an_int(value):
    result = as_integer("layer", value)

    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("value", [True, 3.0, "3", None, np.float64(3), torch.tensor([3, 4])])
def test_other_values_are_no_integers(value):
    with pytest.raises(TypeError, match=r"^layer must be an integer, got "):
        as_integer("layer", value)


def test_a_class_has_its_module_unless_it_is_built_in():
    assert full_class_name("text") == "str"
    assert full_class_name(torch.nn.Linear(1, 1)) == "torch.nn.modules.linear.Linear"


def test_more_than_three_names_are_shortened():
    assert shorten(["a", "b", "c"]) == "a, b, c"
    assert shorten(["a", "b", "c", "d"]) == "a, b, c, ..."
