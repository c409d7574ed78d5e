"""tfdp.accounting.renyi.conversion: the best that one order allows, and never better."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import RDPAccountant, ZCDPAccountant
from tfdp.accounting.analytic_gaussian import gaussian_delta
from tfdp.accounting.renyi.conversion import delta_at_order, epsilon_at_order, log_odds_of_delta
from tfdp.events import GaussianSumEvent


def _simple_epsilon(order, rdp, delta):
    """Canonne, Kamath and Steinke 2020, proposition 12."""
    return rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def _bernoulli_rdp(order, p, r):
    with mpmath.workdps(40):
        a, p, r = mpmath.mpf(order), mpmath.mpf(p), mpmath.mpf(r)
        moment = p**a * r ** (1 - a) + (1 - p) ** a * (1 - r) ** (1 - a)
        return float(mpmath.log(moment) / (a - 1))


def _slow_delta(order, rdp, epsilon):
    """The largest p - e^epsilon r of the Bernoulli pairs with this divergence, by bisection."""
    log_odds = np.linspace(-40, 25, 20_001)
    log_p, log_not_p = -np.logaddexp(0, -log_odds), -np.logaddexp(0, log_odds)
    low, high = np.full_like(log_p, -700.0), log_p
    for _ in range(100):
        middle = (low + high) / 2
        moment = np.logaddexp(
            order * log_p + (1 - order) * middle,
            order * log_not_p + (1 - order) * np.log1p(-np.exp(middle)),
        )
        too_far = moment > (order - 1) * rdp
        low, high = np.where(too_far, middle, low), np.where(too_far, high, middle)
    return float(np.max(np.exp(log_p) - np.exp(epsilon + low)))


@pytest.mark.parametrize("order", [1.01, 1.5, 3.0, 17.3, 200.0])
@pytest.mark.parametrize("rdp", [1e-3, 0.05, 0.7, 6.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0])
def test_delta_equals_the_worst_pair_on_a_grid(order, rdp, epsilon):
    delta, slow = delta_at_order(order, rdp, epsilon), _slow_delta(order, rdp, epsilon)
    if slow < 1e-12:  # Below what the grid resolves.
        assert delta < 1e-11
    else:
        assert delta == pytest.approx(slow, rel=3e-5)
        assert delta >= slow * (1 - 1e-9)


@settings(max_examples=300)
@given(
    st.floats(1.001, 500), st.floats(1e-9, 0.999), st.floats(1e-12, 0.999), st.floats(0.01, 0.999)
)
def test_no_pair_of_bernoulli_distributions_exceeds_it(order, p, ratio, share):
    # Every pair, and an epsilon for which its delta is positive.
    r = p * ratio
    rdp = _bernoulli_rdp(order, p, r)
    epsilon = share * -math.log(ratio)
    delta = p - math.exp(epsilon) * r
    assert delta_at_order(order, rdp, epsilon) >= delta * (1 - 1e-7)
    assert epsilon_at_order(order, rdp, delta) >= epsilon * (1 - 1e-7)


@settings(max_examples=300)
@given(st.floats(1.0001, 1e5), st.floats(1e-10, 50), st.floats(1e-14, 1 - 1e-9))
def test_at_most_the_simple_bound_and_inverse(order, rdp, delta):
    epsilon = epsilon_at_order(order, rdp, delta)
    assert 0 <= epsilon <= max(0.0, _simple_epsilon(order, rdp, delta)) * (1 + 1e-12)
    if epsilon > 1e-6:
        assert delta_at_order(order, rdp, epsilon) == pytest.approx(delta, rel=1e-6)
    assert delta_at_order(order, rdp, epsilon) <= delta * (1 + 1e-6)


def test_gain_over_the_simple_bound_is_real():
    # At 40 % of it, say, and next to nothing where there is little privacy.
    assert epsilon_at_order(8.0, 1e-3, 1e-5) < 0.5 * _simple_epsilon(8.0, 1e-3, 1e-5)
    assert epsilon_at_order(8.0, 5.0, 1e-5) == pytest.approx(_simple_epsilon(8.0, 5.0, 1e-5))


def test_simple_bound_by_hand():
    # 30 + log(1/2) - log(2e-3) / 1 = 30 - 0.693147... + 6.214608..., and no term to leave out.
    assert epsilon_at_order(2.0, 30.0, 1e-3) == pytest.approx(35.521460917862, rel=1e-12)


def test_small_divergence_is_zero_epsilon():
    # Total variation is at most sqrt(1 - exp(-KL)) (Bretagnolle and Huber 1979): 0.1407 here.
    assert epsilon_at_order(1.5, 0.02, 0.141) == 0
    assert delta_at_order(1.5, 0.02, 0.0) <= math.sqrt(1 - math.exp(-0.02))
    # By Pinsker's inequality at least half as much is possible: sqrt(KL / 2) = 0.1.
    assert epsilon_at_order(1.5, 0.02, 0.05) > 0


@settings(max_examples=100)
@given(st.floats(1.01, 300), st.floats(1e-6, 20), st.floats(1e-10, 0.1), st.floats(1.01, 2))
def test_monotone_in_divergence_and_delta(order, rdp, delta, ratio):
    epsilon = epsilon_at_order(order, rdp, delta)
    assert epsilon_at_order(order, rdp * ratio, delta) >= epsilon * (1 - 1e-9)
    assert epsilon_at_order(order, rdp, delta * ratio) <= epsilon * (1 + 1e-9)


def test_limits():
    assert epsilon_at_order(2.0, math.inf, 1e-5) == math.inf
    assert delta_at_order(2.0, math.inf, 1.0) == 1
    assert epsilon_at_order(2.0, 0.0, 1e-5) == 0
    assert delta_at_order(2.0, 0.0, 0.0) == 0
    assert delta_at_order(1e6, 1e6, 3.0) == 1
    assert delta_at_order(1e6, 1e-9, 600.0) == 0


def test_log_odds_tell_how_far_a_hopeless_order_is_off():
    odds = [log_odds_of_delta(order, order, 1.0) for order in (2.0, 5.0, 10.0, 20.0, 40.0)]
    assert odds == sorted(set(odds))
    assert odds[0] == pytest.approx(
        math.log(delta_at_order(2.0, 2.0, 1.0)) - math.log1p(-delta_at_order(2.0, 2.0, 1.0))
    )


@pytest.mark.parametrize("rdp", [1.1e9, 1e100, 3e153, 4.8e299, 1e308])
def test_huge_divergences_are_priced_at_once(rdp):
    """A search among such numbers may never end."""
    epsilon = epsilon_at_order(8.0, rdp, 1e-5)
    assert epsilon == pytest.approx(rdp, rel=1e-8)
    assert delta_at_order(8.0, rdp, epsilon / 2) == 1
    assert log_odds_of_delta(8.0, rdp, epsilon / 2) > 1e8
    assert log_odds_of_delta(8.0, rdp, min(2 * epsilon, 1.7e308)) < -1e8


@pytest.mark.parametrize("rdp", [1.01e9, 3e9])
@pytest.mark.parametrize("simple", [-20.0, -0.1, -1e-15, 0.5, 100.0])
def test_huge_divergences_are_deltas_and_no_odds(rdp, simple):
    """Canonne, Kamath and Steinke 2020, proposition 12; odds of that size are a smaller delta."""
    order = 1 + 1e-9
    a = order - 1
    epsilon = rdp - (simple + math.log(order) - a * math.log1p(-1 / order)) / a
    if epsilon < 0:
        epsilon, simple = 0.0, a * (rdp + math.log1p(-1 / order)) - math.log(order)
    assert delta_at_order(order, rdp, epsilon) == pytest.approx(
        math.exp(min(0.0, simple)), rel=1e-6
    )


@pytest.mark.parametrize("make", [RDPAccountant, ZCDPAccountant])
def test_delta_of_hardly_any_noise_is_that_of_hardly_any_privacy(make):
    for noise in (3e-5, 2.2e-5, 1e-5):
        accountant = make().compose(GaussianSumEvent(1.0, noise))
        for epsilon in (0.01, 0.4 / noise**2):
            assert accountant.get_delta(epsilon) >= gaussian_delta(1 / noise, epsilon)
