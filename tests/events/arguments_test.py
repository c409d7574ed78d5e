"""tfdp.events.arguments: numbers and types are taken as they are, or refused by name."""

import dataclasses
import fractions
import inspect
import math

import numpy as np
import pytest

from tfdp.events.arguments import (
    check_type,
    integer_below,
    positive_integer,
    real_number,
    says_what_to_write,
    set_field,
    several,
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


@says_what_to_write("Write called(1).")
def called(first, *, second=2):
    """Returns both."""
    return first, second


@says_what_to_write("Write Called().")
class Called:
    def __init__(self, first=1):
        self.first = first


class Derived(Called):
    pass


@pytest.mark.parametrize("call", [lambda: called(), lambda: called(1, 2), lambda: called(1, x=2)])
def test_a_call_that_does_not_fit_says_what_to_write(call):
    with pytest.raises(TypeError, match=r"called: .*argument.*\. Write called\(1\)\.$"):
        call()


@pytest.mark.parametrize("cls", [Called, Derived])
def test_a_class_that_is_made_otherwise_says_what_to_write(cls):
    with pytest.raises(TypeError, match=r"Called: .*'second'\. Write Called\(\)\.$"):
        cls(second=2)
    assert cls(3).first == 3


def test_a_call_that_fits_is_the_call():
    assert called(1) == (1, 2)
    assert called(first=1, second=3) == (1, 3)
    assert called.__doc__ == "Returns both."
    assert list(inspect.signature(called).parameters) == ["first", "second"]
    assert list(inspect.signature(Called).parameters) == ["first"]


def test_errors_inside_of_the_call_stay_as_they_are():
    @says_what_to_write("Write something else.")
    def inner(value):
        return len(value)

    with pytest.raises(TypeError, match=r"has no len\(\)$"):
        inner(1)


@pytest.mark.parametrize("values", [(1, 2), [1, 2], np.array([1, 2]), range(1, 3), iter([1, 2])])
def test_several_are_a_tuple(values):
    assert several("steps", values) == (1, 2)


@pytest.mark.parametrize("value", [1, 2.5, None, "12", b"12"])
def test_one_is_not_several(value):
    with pytest.raises(TypeError, match="steps must be a list of numbers"):
        several("steps", value)
