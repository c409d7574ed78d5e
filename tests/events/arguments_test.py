"""tfdp.events.arguments: numbers and types are taken as they are, or refused by name."""

import dataclasses
import fractions
import math

import numpy as np
import pytest

from tfdp.events.arguments import (
    check_type,
    integer_below,
    positive_integer,
    real_number,
    set_field,
)


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1), np.int8(1), fractions.Fraction(1)])
def test_real_numbers_of_every_type_are_python_floats(value):
    number = real_number("x", value, minimum=0, inclusive=False)
    assert type(number) is float
    assert number == 1.0


@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, [1.0], np.ones(1)])
def test_what_is_no_real_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="x must be a real number. Received: x="):
        real_number("x", value, minimum=0, inclusive=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-300, 1.0000001])
def test_outside_its_bounds_is_a_value_error(value):
    with pytest.raises(ValueError, match="x must be finite, at least 0 and at most 1. Received"):
        real_number("x", value, minimum=0, inclusive=True, maximum=1)


def test_the_lower_bound_is_in_or_out_as_asked():
    assert real_number("x", 0, minimum=0, inclusive=True) == 0
    with pytest.raises(ValueError, match="greater than 0"):
        real_number("x", 0, minimum=0, inclusive=False)
    assert real_number("x", 1, minimum=0, inclusive=False, maximum=1) == 1


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_every_type_are_python_ints(value):
    number = positive_integer("n", value)
    assert type(number) is int
    assert number == 3


@pytest.mark.parametrize("value", [True, 3.0, "3", None, np.float64(3)])
def test_a_float_is_no_integer_even_where_it_is_whole(value):
    with pytest.raises(TypeError, match="n must be an integer. Received: n="):
        positive_integer("n", value)


@pytest.mark.parametrize("value", [0, -1, np.int8(-3)])
def test_integers_below_one_are_refused(value):
    with pytest.raises(ValueError, match="n must be at least 1. Received: n="):
        positive_integer("n", value)


def test_type_is_named():
    check_type("flag", False, bool)
    with pytest.raises(TypeError, match="flag must be a bool. Received: flag=0."):
        check_type("flag", 0, bool)


def test_set_field_is_the_only_way_to_change_a_frozen_object():
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        field: int

    frozen = Frozen(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.field = 2
    set_field(frozen, "field", 2)
    assert frozen.field == 2


def test_integers_below_an_end():
    assert [integer_below("k", value, 3) for value in (0, np.int64(2))] == [0, 2]
    for bad, error in ((-1, ValueError), (3, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="k must be"):
            integer_below("k", bad, 3)
