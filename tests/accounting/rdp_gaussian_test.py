"""tfdp.accounting.rdp_gaussian: exact at every order, held against high-precision arithmetic."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.reference import load_reference
from tfdp.accounting.rdp_gaussian import rdp_sampled_gaussian


def _rdp(q, z, order):
    return float(rdp_sampled_gaussian(q, z, np.array([order], dtype=np.float64))[0])


def _slow_rdp(q, z, order):
    """The defining expectation, E_{x ~ N(0, z^2)}[((1 - q) + q exp((2x - 1) / (2z^2)))^order]."""
    with mpmath.workdps(30):
        q, z, order = mpmath.mpf(q), mpmath.mpf(z), mpmath.mpf(order)

        def integrand(x):
            ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * z * z))
            return mpmath.npdf(x, 0, z) * ratio**order

        low, high = -15 * z, max(order, 2) + 15 * z
        pieces = int(min(150, max(20, (high - low) / z)))
        moment = mpmath.quad(integrand, mpmath.linspace(low, high, pieces))
        return float(mpmath.log(moment) / (order - 1))


def test_equals_reference():
    for row in load_reference("rdp_sampled_gaussian.json"):
        value = _rdp(row["sampling_probability"], row["noise_multiplier"], row["alpha"])
        assert value == pytest.approx(float(row["rdp"]), rel=1e-13)


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
        (0.01, 0.15, 3.5),
        (0.01, 0.033, 1.2),
    ],
)
def test_equals_numerical_integration(q, z, order):
    assert _rdp(q, z, order) == pytest.approx(_slow_rdp(q, z, order), rel=1e-12)


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
    assert together == pytest.approx([_rdp(0.01, 1.1, order) for order in orders], rel=1e-14)


@pytest.mark.parametrize("q", [1e-300, 1e-50, 1e-8, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("z", [1e-140, 1e-3, 0.04, 1.0, 1e5, 1e150])
def test_extreme_values_are_finite_and_ordered(q, z):
    orders = np.array([1 + 1e-9, 1.01, 1.5, 2, 10.5, 1024])
    with np.errstate(all="raise", under="ignore"):
        rdp = rdp_sampled_gaussian(q, z, orders)
    assert np.all(np.isfinite(rdp))
    assert np.all(rdp >= 0)
    assert np.all(np.diff(rdp) >= -1e-9 * rdp[1:])


def test_no_noise_is_infinite():
    assert np.all(np.isinf(rdp_sampled_gaussian(0.1, 0.0, np.array([1.1, 2.0]))))
