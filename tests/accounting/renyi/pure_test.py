"""tfdp.accounting.renyi.pure: closed forms against the divergences of explicit distributions."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from tfdp.accounting.mechanisms import (
    BoundedRange,
    PureEpsilon,
    RandomizedResponse,
    SampledLaplace,
)
from tfdp.accounting.rdp import renyi_curve
from tfdp.accounting.renyi.pure import (
    rdp_bounded_range,
    rdp_pure_epsilon,
    rdp_randomized_response,
    rdp_sampled_laplace,
)

ORDERS = np.array([1.0001, 1.01, 1.5, 2.0, 7.3, 64.0, 1000.5])


def _renyi(first, second, order):
    """The divergence of two lists of probabilities, in high precision."""
    a = mpmath.mpf(order)
    moment = mpmath.fsum(p**a * q ** (1 - a) for p, q in zip(first, second, strict=True))
    return mpmath.log(moment) / (a - 1)


def _larger(first, second, order):
    with mpmath.workdps(60):
        return float(max(_renyi(first, second, order), _renyi(second, first, order)))


@pytest.mark.parametrize("epsilon", [1e-5, 0.1, 1.0, 5.0, 40.0])
def test_pure_epsilon_equals_binary_randomized_response(epsilon):
    with mpmath.workdps(60):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        expected = [_larger([p, 1 - p], [1 - p, p], order) for order in ORDERS]
    assert rdp_pure_epsilon(epsilon, ORDERS) == pytest.approx(expected, rel=1e-12)


def _two_outcomes(epsilon, t):
    """The pair with losses t and t - epsilon."""
    t, epsilon = mpmath.mpf(t), mpmath.mpf(epsilon)
    q = (1 - mpmath.exp(t - epsilon)) / (mpmath.exp(t) - mpmath.exp(t - epsilon))
    return [q * mpmath.exp(t), (1 - q) * mpmath.exp(t - epsilon)], [q, 1 - q]


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 2.0, 15.0])
@pytest.mark.parametrize("order", [1.01, 2.0, 7.3, 64.0])
def test_bounded_range_equals_the_worst_pair_of_outcomes(epsilon, order):
    def minus_divergence(t):
        with mpmath.workdps(60):
            return -float(_renyi(*_two_outcomes(epsilon, t), order))

    worst = optimize.minimize_scalar(
        minus_divergence, bounds=(0, epsilon), method="bounded", options={"xatol": 1e-9 * epsilon}
    )
    value = float(rdp_bounded_range(epsilon, np.array([order]))[0])
    assert value == pytest.approx(-worst.fun, rel=1e-9)


@settings(max_examples=100)
@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=6),
    st.integers(0, 2**32 - 1),
    st.floats(0.01, 5),
    st.floats(1.01, 50),
)
def test_bounded_range_holds_for_exponential_mechanisms(utilities, seed, epsilon, order):
    utilities = np.array(utilities)
    moved = utilities + np.random.default_rng(seed).uniform(-1, 1, len(utilities))
    first, second = (np.exp(epsilon * u / 2 - np.max(epsilon * u / 2)) for u in (utilities, moved))
    first, second = ([mpmath.mpf(x) for x in p / p.sum()] for p in (first, second))
    bound = rdp_bounded_range(epsilon, np.array([order]))[0]
    assert _larger(first, second, order) <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    "epsilon", [1e-140, 1e-9, 1e-3, 0.1, 0.5, 2.0, 5.0, 50.0, 700.0, 1e8, 1e120]
)
def test_bounded_range_is_exact_at_every_order(epsilon):
    """The difference of its terms has no digits left in float64 at large orders, and was zero."""
    orders = np.array(
        [1.5, 2, 20, 99, 100, 101, 1e3, 1e5, 1e7, 1e9, 1e12, 1e15, 1e17, 1e150, 1e300]
    )
    found = rdp_bounded_range(epsilon, orders)
    with mpmath.workdps(700):
        e = mpmath.mpf(epsilon)

        def log_sinh_over_x(x):
            return x + mpmath.log1p(-mpmath.exp(-2 * x)) - mpmath.log(2 * x)

        for value, order in zip(found, orders, strict=True):
            a = mpmath.mpf(order)
            g = [log_sinh_over_x(x * e / 2) for x in (a, a - 1, 1)]
            exact = (a * g[0] - (a - 1) * g[1] - g[2]) / (a - 1)
            assert exact * (1 - mpmath.mpf("2e-14")) <= value <= exact * (1 + 1e-9)


def test_bounded_range_costs_a_quarter_of_pure_epsilon_where_privacy_is_good():
    ratio = rdp_bounded_range(0.01, np.array([3.0])) / rdp_pure_epsilon(0.01, np.array([3.0]))
    assert ratio == pytest.approx(0.25, rel=1e-3)
    # And nearly as much where there is none: both tend to epsilon.
    assert rdp_bounded_range(50.0, np.array([1e6])) == pytest.approx(50, rel=1e-3)
    assert rdp_pure_epsilon(50.0, np.array([1e6])) == pytest.approx(50, rel=1e-3)


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("k", [2, 3, 100])
def test_randomized_response_equals_its_distributions(p, k):
    with mpmath.workdps(60):
        low = mpmath.mpf(p) / k
        high = 1 - mpmath.mpf(p) + low
        own, other = [high] + [low] * (k - 1), [low, high] + [low] * (k - 2)
        uniform = [mpmath.mpf(1) / k] * k
        two_units = [_larger(own, other, order) for order in ORDERS]
        null_unit = [_larger(own, uniform, order) for order in ORDERS]
    assert rdp_randomized_response(p, k, False, ORDERS) == pytest.approx(two_units, rel=1e-11)
    assert rdp_randomized_response(p, k, True, ORDERS) == pytest.approx(null_unit, rel=1e-11)


def test_randomized_response_over_two_values_is_pure_epsilon():
    p = 2 / (1 + np.exp(1.5))
    assert rdp_randomized_response(p, 2, False, ORDERS) == pytest.approx(
        rdp_pure_epsilon(1.5, ORDERS), rel=1e-12
    )


def _laplace_moment(q, z, power, extra_points=()):
    """E under Laplace(0, z) of (1 - q + q ratio)^power, by adaptive quadrature."""
    q, z = mpmath.mpf(q), mpmath.mpf(z)

    def mixed(log_ratio):
        return (1 - q + q * mpmath.exp(log_ratio)) ** power

    def inside(x):
        return mpmath.exp(-x / z) / (2 * z) * mixed((2 * x - 1) / z)

    points = sorted({0, 1, *(1 - 2.0**-k for k in range(1, 11)), *extra_points})
    tails = mixed(-1 / z) / 2 + mixed(1 / z) * mpmath.exp(-1 / z) / 2
    return tails + mpmath.quad(inside, points)


@pytest.mark.parametrize("q", [1e-4, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("z", [0.1, 1.0, 20.0])
@pytest.mark.parametrize("order", [1.01, 2.5, 40.0])
def test_sampled_laplace_equals_numerical_integration(q, z, order):
    points = [k * z for k in range(1, 60) if k * z < 1]
    with mpmath.workdps(25):
        order_ = mpmath.mpf(order)
        removed = mpmath.log(_laplace_moment(q, z, order_, points)) / (order_ - 1)
        added = mpmath.log(_laplace_moment(q, z, 1 - order_, points)) / (order_ - 1)
    value = float(rdp_sampled_laplace(q, z, np.array([order]))[0])
    assert value == pytest.approx(float(removed), rel=1e-10)
    # The other direction, Mironov, Talwar and Zhang 2019, theorem 5.
    assert float(added) <= value * (1 + 1e-12)


@pytest.mark.parametrize("z", [0.05, 1.0, 30.0])
def test_laplace_equals_the_closed_form(z):
    # Mironov 2017, proposition 6.
    a = ORDERS
    moment = np.logaddexp(
        np.log(a / (2 * a - 1)) + (a - 1) / z, np.log((a - 1) / (2 * a - 1)) - a / z
    )
    assert rdp_sampled_laplace(1.0, z, ORDERS)[1:] == pytest.approx(
        (moment / (a - 1))[1:], rel=1e-9
    )


def test_very_little_laplace_noise_is_pure_epsilon():
    assert rdp_sampled_laplace(1.0, 1e-3, ORDERS) == pytest.approx(rdp_pure_epsilon(1000.0, ORDERS))
    assert rdp_sampled_laplace(0.5, 1e-140, np.array([2.0])) == pytest.approx(1e140)
    # It joins what is integrated.
    above, below = (rdp_sampled_laplace(0.1, z, np.array([30.0]))[0] for z in (0.00501, 0.00499))
    assert above < below < above * 1.01


def _hockey_stick(shifts, epsilon):
    """E_P1[(1 - e^(epsilon - L))+] of Laplace noise on several coordinates, by their grids."""
    losses, probabilities = np.zeros(1), np.ones(1)
    for shift in shifts:
        # Of a coordinate under P1: losses shift and -shift, and in between 2x - shift.
        x = (np.arange(400) + 0.5) / 400 * shift
        one = np.concatenate([[shift, -shift], 2 * x - shift])
        weight = np.concatenate([[0.5, np.exp(-shift) / 2], np.exp(x - shift) / 2 * shift / 400])
        losses = np.add.outer(losses, one).ravel()
        probabilities = np.multiply.outer(probabilities, weight).ravel()
    return np.sum(probabilities * np.maximum(0, -np.expm1(epsilon - losses)))


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.5), (0.1, 2.0), (3.0, 1.0), (0.01, 0.01)])
def test_one_shift_dominates_two_of_the_same_l1_norm(first, second):
    # So that the price of one coordinate is that of any number of them, on a sample too.
    total = first + second
    for epsilon in np.linspace(-total, total, 21):
        one = -np.expm1((epsilon - total) / 2)  # Of one coordinate.
        assert _hockey_stick([first, second], epsilon) <= one + 1e-5
    assert _hockey_stick([first, second], 0.0) < 0.999 * -np.expm1(-total / 2)


@given(st.floats(1e-4, 30), st.floats(1.001, 1.5), st.floats(1.001, 200))
def test_monotone(epsilon, ratio, order):
    orders = np.array([order, order * ratio])
    for mechanism, dearer in [
        (PureEpsilon(epsilon), PureEpsilon(epsilon * ratio)),
        (BoundedRange(epsilon), BoundedRange(epsilon * ratio)),
        (SampledLaplace(0.1, 1 / epsilon), SampledLaplace(0.1, 1 / epsilon / ratio)),
        (SampledLaplace(0.1, 1 / epsilon), SampledLaplace(0.1 * ratio, 1 / epsilon)),
        (
            RandomizedResponse(1 / (1 + epsilon), 5, True),
            RandomizedResponse(1 / (1 + epsilon * ratio), 5, True),
        ),
    ]:
        cheap, dear = (renyi_curve([(m, 1)])(orders) for m in (mechanism, dearer))
        assert cheap[0] <= cheap[1] * (1 + 1e-9)
        assert np.all(cheap <= dear * (1 + 1e-9))
        assert np.all(cheap > 0)


def test_counts_multiply():
    terms = [(BoundedRange(1.0), 3), (PureEpsilon(0.5), 2), (BoundedRange(0.1), 1)]
    expected = (
        3 * rdp_bounded_range(1.0, ORDERS)
        + 2 * rdp_pure_epsilon(0.5, ORDERS)
        + rdp_bounded_range(0.1, ORDERS)
    )
    assert renyi_curve(terms)(ORDERS) == pytest.approx(expected, rel=1e-14)
