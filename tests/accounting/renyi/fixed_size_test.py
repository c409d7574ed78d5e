"""tfdp.accounting.renyi.fixed_size: exact for its pair, above all others, below Wang et al."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special

from tfdp.accounting.mechanisms import FixedSizeGaussian
from tfdp.accounting.renyi.fixed_size import fixed_size_gaussian_curve, rdp_fixed_size_gaussian


def _rdp(n, population, z, order):
    return float(rdp_fixed_size_gaussian(n, population, z, np.array([order], dtype=float))[0])


def _slow_rdp(q, z, order):
    """The pair's moment as it is defined: two half lines and an atom of loss zero."""
    with mpmath.workdps(30):
        q, z, a = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(order)

        def with_(x):
            return mpmath.npdf(x, 1, z)

        def without(x):
            return mpmath.npdf(x, 0, z)

        def right(x):
            return ((1 - q) * without(x) + q * with_(x)) ** a * without(x) ** (1 - a)

        def left(x):
            return with_(x) ** a * ((1 - q) * with_(x) + q * without(x)) ** (1 - a)

        half, high = mpmath.mpf(1) / 2, max(a, 2) + 15 * z
        pieces = int(max(10, min(60, high / z / 2)))
        moment = mpmath.quad(right, mpmath.linspace(half, high, pieces))
        moment += mpmath.quad(left, mpmath.linspace(-15 * z - 1, half, 10))
        moment += (1 - q) * mpmath.erf(1 / (2 * mpmath.sqrt(2) * z))
        return float(mpmath.log(moment) / (a - 1))


def _wang_balle_kasiviswanathan(q, z, order):
    """Their theorem 9 for integer orders and Gaussians, for which epsilon(infinity) is none."""
    s, total = 1 / z**2, 1.0
    for k in range(2, order + 1):
        zeta = 2 * math.exp(k * (k - 1) * s / 2)
        if k == 2:
            zeta = min(zeta, 4 * math.expm1(s))
        total += math.comb(order, k) * q**k * zeta
    return math.log(total) / (order - 1)


@pytest.mark.parametrize(
    ("n", "z", "order"),
    [
        (1, 1.0, 1.01),
        (1, 4.0, 3.0),
        (1, 50.0, 20.5),
        (100, 0.3, 1.01),
        (100, 0.3, 3.0),
        (900, 1.0, 3.0),
        (900, 4.0, 20.5),
    ],
)
def test_equals_numerical_integration(n, z, order):
    assert _rdp(n, 1000, z, order) == pytest.approx(_slow_rdp(n / 1000, z, order), rel=1e-10)


@pytest.mark.parametrize("n", [1, 50, 400])
@pytest.mark.parametrize("z", [0.4, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("order", [2, 3, 8, 30])
def test_at_most_the_bound_of_wang_balle_and_kasiviswanathan(n, z, order):
    if order**2 / z**2 > 1000:  # Their terms overflow.
        order = 4
    assert _rdp(n, 1000, z, order) <= _wang_balle_kasiviswanathan(n / 1000, z, order)


def test_a_quarter_of_that_bound_where_privacy_is_good():
    ratio = _rdp(1, 1000, 30.0, 2) / _wang_balle_kasiviswanathan(1e-3, 30.0, 2)
    assert ratio == pytest.approx(0.25, rel=0.03)


@settings(max_examples=150)
@example(1, 0.3125, 9.0, [(1.0, 4.0), (1.0, 1.0), (1.0, 4.0)])  # Its moment overflows a float.
@given(
    st.integers(1, 99),
    st.floats(0.3, 10),
    st.floats(1.01, 30),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi)), min_size=3, max_size=3),
)
def test_holds_for_three_records_anywhere(n, stddev, order, polar):
    # Whoever is sampled in place of the replaced unit, and both its values, have norm at most 1:
    # three points in a disc. The divergence of the mixtures, on a grid of the plane.
    means = np.array([[r * math.cos(phi), r * math.sin(phi)] for r, phi in polar])
    axis = np.linspace(-1 - 9 * stddev, 1 + 9 * stddev, 161)
    x, y = np.meshgrid(axis, axis)
    logs = [-((x - a) ** 2 + (y - b) ** 2) / 2 / stddev**2 for a, b in means]
    q = n / 100
    first = np.logaddexp(math.log1p(-q) + logs[0], math.log(q) + logs[1])
    second = np.logaddexp(math.log1p(-q) + logs[0], math.log(q) + logs[2])
    cell = (axis[1] - axis[0]) ** 2 / (2 * math.pi * stddev**2)
    # A moment may be above what a float holds: its logarithm is all that is needed.
    log_moment = math.log(cell) + special.logsumexp(order * first + (1 - order) * second)
    # A replacement moves sums by at most 2.
    bound = _rdp(n, 100, stddev / 2, order)
    assert log_moment / (order - 1) <= bound * (1 + 1e-6) + 1e-9


@settings(max_examples=60)
@given(st.integers(1, 998), st.floats(0.1, 100), st.floats(1.001, 60), st.floats(1.001, 1.5))
def test_monotone_and_at_most_everything(n, z, order, ratio):
    value = _rdp(n, 1000, z, order)
    assert _rdp(n + 1, 1000, z, order) >= value * (1 - 1e-11)
    assert _rdp(n, 1000, z, order * ratio) >= value * (1 - 1e-11)
    assert _rdp(n, 1000, z * ratio, order) <= value * (1 + 1e-11)
    assert 0 < value <= order / (2 * z**2)


def test_only_the_ratio_of_sizes_matters():
    assert _rdp(3, 30, 1.0, 5.5) == pytest.approx(_rdp(100, 1000, 1.0, 5.5), rel=1e-14)


def test_orders_do_not_depend_on_each_other():
    orders = np.array([1.1, 2.0, 300.0])
    together = rdp_fixed_size_gaussian(10, 1000, 5.0, orders)
    assert together == pytest.approx([_rdp(10, 1000, 5.0, a) for a in orders], rel=1e-10)


def test_curve_adds_up_and_goes_on_to_larger_orders():
    curve = fixed_size_gaussian_curve(
        [FixedSizeGaussian(10, 1000, 1.0), FixedSizeGaussian(1, 7, 3.0)], np.array([3.0, 2.0])
    )
    for order in (2.0, 9.0, 100.0):
        expected = 3 * _rdp(10, 1000, 1.0, order) + 2 * _rdp(1, 7, 3.0, order)
        assert curve(np.array([order]))[0] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("z", [1e-150, 1e-3, 1.0, 1e10, 1e150])
def test_extreme_values_are_finite(z):
    orders = np.array([1 + 1e-9, 2.0, 1000.0, 1e12])
    rdp = rdp_fixed_size_gaussian(1, 1000, z, orders)
    assert np.all(rdp > 0)
    with np.errstate(over="ignore"):
        assert np.all(rdp <= orders / 2 / min(z, 1e60) ** 2 * (1 + 1e-12))
