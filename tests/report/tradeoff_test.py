"""The trade-off curve: no attack beats it, and the best attacks reach it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from tfdp.accounting import PLDAccountant, RDPAccountant
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.report.tradeoff import Profile, make_profile

RATES = [0.0, 1e-4, 1e-3, 0.01, 0.05, 0.3, 0.5, 0.9, 1.0]


def gaussian_delta(mu, epsilon):
    """delta(epsilon) of N(0, 1) against N(mu, 1) (Balle and Wang 2018, theorem 8)."""
    normal = stats.norm
    return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(
        -mu / 2 - epsilon / mu
    )


def gaussian_profile(mu, scale=1.0):
    def epsilon(delta):
        return optimize.brentq(lambda e: gaussian_delta(mu, e) - delta, 0, 100)

    return make_profile(epsilon, lambda e: scale * gaussian_delta(mu, e))


def best_rate(mu, rate):
    """The power of the most powerful test of N(0, 1) against N(mu, 1) (Neyman and Pearson)."""
    return stats.norm.cdf(stats.norm.ppf(rate) + mu)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_of_one_gaussian_the_best_test_is_just_below_it(mu):
    profile = gaussian_profile(mu)
    for rate in RATES:
        exact, bound = best_rate(mu, rate), profile.true_positive_rate(rate)
        # At rates near delta = 1e-9, where the profile ends, it is not tight.
        assert exact - 1e-12 <= bound <= exact * 1.002 + 2e-9
    assert profile.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-6)


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_a_profile_that_promises_too_much_is_beaten(mu):
    profile = gaussian_profile(mu, scale=0.9)
    assert any(best_rate(mu, rate) > profile.true_positive_rate(rate) for rate in RATES)


_pairs = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), min_size=1, max_size=5)


@settings(max_examples=100)
@given(_pairs, st.floats(0, 1))
def test_is_the_smallest_of_the_bounds_of_all_pairs(pairs, rate):
    profile = Profile(*np.array(pairs, dtype=np.float64).T)
    bounds = [1.0]
    for epsilon, delta in pairs:
        bounds.append(math.exp(epsilon) * rate + delta)
        bounds.append(1 - math.exp(-epsilon) * (1 - delta - rate))
    expected = max(rate, min(bounds))
    assert profile.true_positive_rate(rate) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (1.0, 0.0), (2.0, 0.05), (0.3, 0.5)])
def test_advantage_is_the_largest_gain_over_guessing(epsilon, delta):
    profile = Profile(np.array([epsilon]), np.array([delta]))
    gains = [profile.true_positive_rate(rate) - rate for rate in np.linspace(0, 1, 100_001)]
    assert profile.advantage == pytest.approx(max(gains), abs=1e-5)
    assert profile.advantage >= max(gains) - 1e-12


def test_randomized_response_reaches_it():
    # The true bit is reported with probability e^1 / (1 + e^1). The test that believes the report
    # has FPR 1 / (1 + e) and TPR e / (1 + e).
    profile = Profile(np.array([1.0]), np.array([0.0]))
    false, true = 1 / (1 + math.e), math.e / (1 + math.e)
    assert profile.true_positive_rate(false) == pytest.approx(true, rel=1e-12)
    assert profile.advantage == pytest.approx(true - false, rel=1e-12)


def test_of_nothing_only_guessing_is_left():
    profile = make_profile(lambda delta: 0.0, lambda epsilon: 0.0)
    assert [profile.true_positive_rate(rate) for rate in RATES] == RATES
    assert profile.advantage == 0


def test_no_privacy_rules_nothing_out():
    profile = make_profile(lambda delta: math.inf, lambda epsilon: 1.0)
    assert [profile.true_positive_rate(rate) for rate in RATES] == [1.0] * len(RATES)
    assert profile.advantage == 1


def test_where_only_small_deltas_have_no_epsilon_the_others_count():
    profile = make_profile(
        lambda delta: 1.0 if delta >= 1e-6 else math.inf, lambda epsilon: 1e-6 if epsilon else 1.0
    )
    assert profile.true_positive_rate(0.0) == 1e-6


def _scores(outputs, q, sigma):
    """Log likelihood ratios of steps x ~ N(b, sigma^2), b being 1 with probability q, or never."""
    return np.log1p(q * np.expm1((2 * outputs - 1) / (2 * sigma**2))).sum(axis=1)


def test_optimal_attack_on_sampled_steps_is_below_and_near():
    q, sigma, steps, trials = 0.3, 1.0, 10, 100_000
    rng = np.random.default_rng(0)
    shape = (trials, steps)
    absent = _scores(rng.normal(0, sigma, shape), q, sigma)
    present = _scores(rng.normal(0, sigma, shape) + (rng.random(shape) < q), q, sigma)
    event = SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, sigma))
    accountants = [
        accountant().compose(event, steps) for accountant in (PLDAccountant, RDPAccountant)
    ]
    pld, rdp = [make_profile(a.get_epsilon, a.get_delta) for a in accountants]
    for rate in (0.01, 0.05, 0.2):
        achieved = np.mean(present > np.quantile(absent, 1 - rate))
        # Both rates are estimated: five standard deviations of each.
        slack = 5 * math.sqrt(achieved / trials) + 5 * achieved / math.sqrt(rate * trials)
        bound = pld.true_positive_rate(rate)
        assert achieved <= bound + slack
        assert bound <= rdp.true_positive_rate(rate)
        # The attack has power: half of the bound would be refuted.
        assert achieved - slack > bound / 2
