"""tfdp.accounting.renyi.gaussian: exact at every order, held against high-precision arithmetic."""

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.reference import load_reference
from tfdp.accounting.mechanisms import SampledGaussian
from tfdp.accounting.renyi.gaussian import (
    SampledGaussians,
    rdp_sampled_gaussian,
    sampled_gaussian_curve,
)


def _rdp(q, z, order, direction="both"):
    orders = np.array([order], dtype=np.float64)
    return float(rdp_sampled_gaussian(q, z, orders, direction=direction)[0])


def _moment(q, z, power, x):
    """Density of N(0, z^2) times ((1 - q) + q exp((2x - 1) / (2z^2)))^power."""
    return mpmath.npdf(x, 0, z) * (1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))) ** power


def _slow_rdp(q, z, order, direction="remove"):
    """The defining expectation by adaptive quadrature."""
    with mpmath.workdps(30):
        q, z, order = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(order)
        power = order if direction == "remove" else 1 - order
        low, high = -15 * z + min(0, power * q), max(order, 2) + 15 * z
        pieces = int(min(150, max(20, (high - low) / z)))
        moment = mpmath.quad(lambda x: _moment(q, z, power, x), mpmath.linspace(low, high, pieces))
        return float(mpmath.log(moment) / (order - 1))


def _fine_sum_rdp(q, z, order):
    """The same as a sum over points that are four times as dense as those of tfdp."""
    with mpmath.workdps(30):
        q, z, order = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(order)
        step = min(z, z * z) / 8
        count = int((max(order, 2) + 28 * z) / step)
        moment = step * mpmath.fsum(
            _moment(q, z, order, -14 * z + step * i) for i in range(count + 1)
        )
        return float(mpmath.log(moment) / (order - 1))


def _binomial_rdp(q, z, order):
    """At integer orders: sum_k C(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) / (2 z^2)), exactly."""
    with mpmath.workdps(60):
        q, z = mpmath.mpf(q), mpmath.mpf(z)
        moment, binomial = mpmath.mpf(0), mpmath.mpf(1)
        for k in range(order + 1):
            weight = binomial * (1 - q) ** (order - k) * q**k
            moment += weight * mpmath.exp(k * (k - 1) / (2 * z * z))
            binomial = binomial * (order - k) / (k + 1)
        return float(mpmath.log(moment) / (order - 1))


def test_equals_reference():
    for row in load_reference("rdp_sampled_gaussian.json"):
        value = _rdp(row["sampling_probability"], row["noise_multiplier"], row["alpha"])
        assert value == pytest.approx(float(row["rdp"]), rel=1e-12)


@pytest.mark.parametrize(
    ("q", "z", "order"),
    [
        (0.01, 1.1, 1.01),
        (0.01, 1.1, 1.0001),
        (0.01, 1.1, 17),
        (1e-3, 0.6, 2.5),
        (0.9, 0.5, 1.3),
        (0.5, 8.0, 40.5),
        (1e-5, 30.0, 1.1),
        (0.01, 2.85, 30.7),
        (0.01, 2.95, 30.7),
    ],
)
def test_equals_numerical_integration(q, z, order):
    assert _rdp(q, z, order) == pytest.approx(_slow_rdp(q, z, order), rel=1e-12)


@pytest.mark.parametrize("q", [1e-6, 1e-3, 0.2, 0.99])
@pytest.mark.parametrize("z", [0.2, 0.7, 2.5, 12.0, 100.0])
@pytest.mark.parametrize("order", [1.01, 1.7, 4.3])
def test_small_fractional_orders_equal_a_fine_sum(q, z, order):
    assert _rdp(q, z, order) == pytest.approx(_fine_sum_rdp(q, z, order), rel=1e-10)


@pytest.mark.parametrize(
    ("q", "z", "order"),
    [(1e-6, 100.0, 4095.5), (0.3, 100.0, 1000.3), (1e-3, 12.0, 300.5), (0.05, 3.0, 64.2)]
    # Little noise: the last two are computed in closed form.
    + [(0.01, 0.15, 3.5), (0.01, 0.05, 2.2), (0.01, 0.041, 2.2), (0.01, 0.033, 1.2)],
)
def test_extreme_fractional_orders_equal_a_fine_sum(q, z, order):
    assert _rdp(q, z, order) == pytest.approx(_fine_sum_rdp(q, z, order), rel=1e-10)


@pytest.mark.parametrize("q", [1e-6, 0.01, 0.6])
@pytest.mark.parametrize("z", [0.2, 1.0, 6.0, 100.0])
@pytest.mark.parametrize("order", [2, 3, 31, 256, 4096])
def test_integer_orders_equal_the_binomial_sum(q, z, order):
    assert _rdp(q, z, order) == pytest.approx(_binomial_rdp(q, z, order), rel=1e-10)


@pytest.mark.parametrize(
    ("q", "z", "order"),
    [(0.01, 1.1, 1.01), (0.5, 0.7, 2), (1e-4, 0.3, 8.5), (0.3, 5.0, 120.5), (0.9, 2.0, 20)],
)
def test_addition_equals_numerical_integration_and_costs_less(q, z, order):
    added = _rdp(q, z, order, "add")
    assert added == pytest.approx(_slow_rdp(q, z, order, "add"), rel=1e-10)
    assert added < _rdp(q, z, order, "remove") == _rdp(q, z, order)


@settings(max_examples=60)
@given(st.floats(1e-8, 0.999), st.floats(0.05, 100), st.floats(1.001, 80))
def test_addition_never_costs_more(q, z, order):
    # Mironov, Talwar and Zhang 2019, theorem 5.
    assert _rdp(q, z, order, "add") <= _rdp(q, z, order) * (1 + 1e-10)


def test_both_directions_are_the_same_without_sampling():
    for direction in ("add", "remove", "both"):
        assert _rdp(1.0, 2.0, 3.5, direction) == 3.5 / 8


def test_direction_is_checked():
    with pytest.raises(ValueError, match="direction='up'"):
        _rdp(0.1, 1.0, 2.0, "up")


@pytest.mark.parametrize("order", [1.000001, 1.5, 2, 64, 1024.5])
@pytest.mark.parametrize("z", [1e-3, 0.7, 4, 1e6])
def test_without_sampling_is_order_over_two_z_squared(order, z):
    assert _rdp(1.0, z, order) == pytest.approx(order / (2 * z**2), rel=1e-15)
    # Sampling nearly everything is continuous with that. 1 - q is 1e-13.
    assert _rdp(1 - 1e-13, z, order) == pytest.approx(order / (2 * z**2), rel=1e-6)


def test_int_order_equals_float_order_exactly():
    ints, floats = np.arange(2, 40), np.arange(2.0, 40.0)
    assert np.array_equal(
        rdp_sampled_gaussian(0.01, 2, ints), rdp_sampled_gaussian(0.01, 2.0, floats)
    )


@pytest.mark.parametrize("order", [2, 3, 11, 64, 256])
@pytest.mark.parametrize("q", [1e-8, 0.01, 0.6])
@pytest.mark.parametrize("z", [0.033, 0.3, 1.1, 2.9, 50.0])
def test_continuous_across_integers(q, z, order):
    below, at, above = rdp_sampled_gaussian(q, z, np.array([order - 1e-6, order, order + 1e-6]))
    assert below < at < above
    assert (below + above) / 2 == pytest.approx(at, rel=1e-9)


@settings(max_examples=60)
@given(st.floats(1e-8, 0.999), st.floats(0.05, 100), st.floats(1.001, 80), st.floats(1.001, 1.5))
def test_monotone_and_at_most_unsampled(q, z, order, ratio):
    value = _rdp(q, z, order)
    # Rounding only: no property is off by more than 1e-11.
    assert _rdp(q, z, order * ratio) >= value * (1 - 1e-11)
    assert _rdp(min(q * ratio, 1), z, order) >= value * (1 - 1e-11)
    assert _rdp(q, z * ratio, order) <= value * (1 + 1e-11)
    assert 0 < value <= order / (2 * z**2) * (1 + 1e-11)


def test_order_does_not_depend_on_the_others():
    orders = np.array([1.1, 2.0, 5.5, 200.5])
    together = rdp_sampled_gaussian(0.01, 1.1, orders)
    assert together == pytest.approx([_rdp(0.01, 1.1, order) for order in orders], rel=1e-13)


def test_many_mechanisms_at_once_equal_one_by_one():
    pairs = list(itertools.product([1e-5, 0.01, 0.7, 1.0], [0.03, 0.3, 1.0, 7.0, 300.0]))
    orders = np.array([1.01, 3.0, 7.7, 90.0])
    together = SampledGaussians(*np.array(pairs).T)
    one_by_one = np.array([rdp_sampled_gaussian(q, z, orders) for q, z in pairs])
    assert together.rdp(orders) == pytest.approx(one_by_one, rel=1e-12)
    # What was computed for smaller orders is extended for larger ones.
    assert together.rdp(2 * orders) == pytest.approx(
        np.array([rdp_sampled_gaussian(q, z, 2 * orders) for q, z in pairs]), rel=1e-12
    )
    curve = sampled_gaussian_curve([SampledGaussian(q, z) for q, z in pairs], np.arange(1.0, 21.0))
    assert curve(orders) == pytest.approx(np.arange(1, 21) @ one_by_one, rel=1e-12)


@pytest.mark.parametrize("q", [1e-300, 1e-50, 1e-8, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("z", [1e-140, 1e-3, 0.04, 1.0, 1e5, 1e150])
def test_extreme_values_are_finite_and_ordered(q, z):
    orders = np.array([1 + 1e-9, 1.01, 1.5, 2, 10.5, 1024])
    with np.errstate(all="raise", under="ignore"):
        rdp = rdp_sampled_gaussian(q, z, orders)
    assert np.all(np.isfinite(rdp))
    assert np.all(rdp >= 0)
    assert np.all(np.diff(rdp) >= -1e-9 * rdp[1:])


@pytest.mark.parametrize("z", [0.05, 1.0, 100.0])
def test_orders_beyond_any_integral_are_priced_as_without_sampling(z):
    assert _rdp(0.01, z, 1e12) == pytest.approx(1e12 / (2 * z**2), rel=1e-12)


def test_no_noise_is_infinite():
    assert np.all(np.isinf(rdp_sampled_gaussian(0.1, 0.0, np.array([1.1, 2.0]))))
