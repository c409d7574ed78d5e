"""tfdp.accounting.planning.boundary: both sides of a budget's edge, found for any monotone cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.accounting.planning.boundary import Axis, Boundary, Point, find_boundary, round_up

REAL = Axis(1e-3, 1e8, integer=False, tolerance=2e-4)
WHOLE = Axis(1, 10**12, integer=True, tolerance=0.0)


class _Counted:
    def __init__(self, cost):
        self.cost, self.numbers = cost, []

    def __call__(self, x):
        self.numbers.append(x)
        return self.cost(x)


def _check_real(edge, cost, budget):
    assert cost(edge.within.x) <= budget < cost(edge.beyond.x)
    assert 0 < math.log(edge.within.x / edge.beyond.x) <= REAL.tolerance


@given(
    st.floats(0.3, 3),
    st.floats(-2, 6).map(lambda x: 10**x),
    st.floats(-2, 6).map(lambda x: 10**x),
    st.floats(-0.5, 0.5),
)
def test_encloses_the_edge_of_falling_costs_in_few_evaluations(power, where, start, bend):
    def cost(x):
        # From one power law to another, as epsilons go.
        return (x / where) ** -power * (1 + (x / where) ** (bend * power))

    counted = _Counted(cost)
    _check_real(find_boundary(counted, 2.0, REAL, start), cost, 2.0)
    assert len(counted.numbers) <= 20


@given(
    st.floats(0.2, 2),
    st.integers(1, 10**9),
    st.floats(0, 8).map(lambda x: 10**x),
)
def test_encloses_the_edge_of_rising_costs_between_neighbours(power, last, start):
    def cost(n):
        return (n / (last + 0.5)) ** power

    counted = _Counted(cost)
    edge = find_boundary(counted, 1.0, WHOLE, start)
    assert (edge.within.x, edge.beyond.x) == (last, last + 1)
    assert len(counted.numbers) <= 40
    assert all(n == int(n) for n in counted.numbers)


@pytest.mark.parametrize("start", [1e-3, 0.7, 5.0, 1e8])
@pytest.mark.parametrize(
    "cost",
    [
        lambda x: math.inf if x < 1.7 else 0.0,
        lambda x: math.inf if x < 1.7 else 0.9,
        lambda x: 50.0 if x < 1.7 else 0.0,
        lambda x: 1.0001 if x < 1.7 else 0.9999,
    ],
    ids=["inf to zero", "inf to some", "much to zero", "a step"],
)
def test_jumps_are_found_too(cost, start):
    edge = find_boundary(cost, 1.0, REAL, start)
    _check_real(edge, cost, 1.0)
    assert edge.beyond.x < 1.7 <= edge.within.x


def test_staircase_of_integers():
    # Begun passes: cost rises only at every tenth.
    edge = find_boundary(lambda n: math.ceil(n / 10), 7.0, WHOLE, 1000)
    assert (edge.within.x, edge.beyond.x) == (70, 71)


@pytest.mark.parametrize(("axis", "last"), [(REAL, 1e8), (WHOLE, 1)])
def test_everything_is_beyond(axis, last):
    edge = find_boundary(lambda x: 3.0, 2.0, axis, 5)
    assert edge.within is None
    assert edge.beyond.x == last


@pytest.mark.parametrize(("axis", "last"), [(REAL, 1e-3), (WHOLE, 10**12)])
def test_everything_is_within(axis, last):
    edge = find_boundary(lambda x: 1.0, 2.0, axis, 5)
    assert edge.beyond is None
    assert edge.within.x == last


def test_tolerance_of_integers():
    axis = Axis(1, 10**12, integer=True, tolerance=0.05)
    edge = find_boundary(lambda n: n / 123_456.5, 1.0, axis, 10)
    assert edge.within.x <= 123_456 < edge.beyond.x <= 1.052 * edge.within.x


def test_real_numbers_are_what_is_printed():
    counted = _Counted(lambda x: 1 / x)
    find_boundary(counted, math.pi, REAL, 1.0)
    assert all(x == float(f"{x:.6g}") for x in counted.numbers)


@given(st.floats(-300, 300).map(lambda x: 10**x))
def test_round_up_is_the_next_number_of_six_digits(x):
    rounded = round_up(x)
    assert rounded == float(f"{rounded:.6g}")
    assert x * (1 - 1e-11) <= rounded <= x * (1 + 1.00001e-5)


def test_crossing_and_slope_of_a_power_law():
    # cost = x^-2: log cost falls by 2 a unit of log x, and is 0 at 1.
    edge = Boundary(Point(2.0, -2 * math.log(2)), Point(0.5, 2 * math.log(2)))
    assert edge.crossing(REAL) == pytest.approx(1.0, rel=1e-5)
    assert edge.slope(REAL) == pytest.approx(-2.0)


def test_edge_of_one_side():
    edge = Boundary(None, Point(3.0, math.inf))
    assert edge.crossing(REAL) == edge.side.x == 3.0
    assert edge.slope(REAL) < 0
    with pytest.raises(ValueError, match="no side"):
        _ = Boundary(None, None).side
