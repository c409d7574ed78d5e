"""tfdp.accounting.GDPAccountant: exact, or not to be mistaken for a guarantee."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import GDPAccountant, PRVAccountant, UnsupportedEventError
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.events import (
    FixedSizeSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    TruncatedPoissonSampling,
)

STEP = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 4.0))


def test_gaussians_without_sampling_are_exact():
    accountant = GDPAccountant().compose(GaussianSumEvent(1.0, 3.0), 4)
    accountant.compose(GaussianSumEvent(1.0, 5.0))
    mu = math.sqrt(4 / 9 + 1 / 25)
    assert accountant.get_epsilon(1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-12)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 4.0, 50.0])
def test_pure_privacy_has_a_trade_off_curve_above_the_gaussian(epsilon):
    accountant = GDPAccountant().compose(PureEpsilonEvent(epsilon))
    mu = accountant._mu(guaranteed=True)
    level = np.concatenate([np.logspace(-40, -1, 200), np.linspace(0.1, 0.9, 200)])
    gaussian = stats.norm.cdf(-stats.norm.ppf(level) - mu)
    pure = np.maximum(1 - np.exp(epsilon) * level, np.exp(-epsilon) * (1 - level))
    assert np.all(gaussian <= pure * (1 + 1e-9))
    corner = 1 / (1 + math.exp(epsilon))
    assert stats.norm.cdf(-stats.norm.ppf(corner) - mu) == pytest.approx(corner, rel=1e-6)


def test_samples_are_refused_with_the_reason():
    with pytest.raises(UnsupportedEventError, match="not an upper bound"):
        GDPAccountant().compose(STEP)


def test_the_limit_is_never_given_as_a_guarantee():
    accountant = GDPAccountant(asymptotic=True).compose(STEP, 10_000)
    assert "NOT an upper bound" in repr(accountant) == str(accountant)
    for call in (lambda: accountant.get_epsilon(1e-5), lambda: accountant.get_delta(1.0)):
        with pytest.raises(UnsupportedEventError, match="not an upper bound"):
            call()
    # Where there is no sample there is a guarantee.
    unsampled = GDPAccountant(asymptotic=True).compose(GaussianSumEvent(1.0, 4.0))
    assert unsampled.get_epsilon(1e-5) == unsampled.asymptotic_epsilon(1e-5)


def test_the_limit_is_the_published_one_and_too_small():
    accountant = GDPAccountant(asymptotic=True).compose(STEP, 10_000)
    # mu = q sqrt(T (e^(1 / z^2) - 1))
    mu = 0.01 * math.sqrt(10_000 * math.expm1(1 / 16))
    epsilon = accountant.asymptotic_epsilon(1e-5)
    assert epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)
    assert accountant.asymptotic_delta(epsilon) == pytest.approx(1e-5, rel=1e-6)
    # This is why it is no guarantee: the truth is proven to be larger.
    assert epsilon < PRVAccountant(1e-4).compose(STEP, 10_000).get_epsilon_interval(1e-5).lower
    little_noise = SampledEvent(PoissonSampling(0.001), GaussianSumEvent(1.0, 0.4))
    accountant = GDPAccountant(asymptotic=True).compose(little_noise, 1000)
    truth = PRVAccountant().compose(little_noise, 1000).get_epsilon_interval(1e-5)
    assert accountant.asymptotic_epsilon(1e-5) < 0.75 * truth.lower


def test_the_limit_of_what_it_does_not_know_is_refused_or_infinite():
    accountant = GDPAccountant(asymptotic=True)
    gaussian = GaussianSumEvent(1.0, 4.0)
    for sampling in (PoissonSampling(0.1), FixedSizeSampling(1, 10)):
        event = SampledEvent(sampling, gaussian, NeighboringRelation.REPLACE_ONE)
        with pytest.raises(UnsupportedEventError, match="GDPAccountant cannot price"):
            accountant.compose(event)
    assert accountant.asymptotic_epsilon(1e-5) == accountant.asymptotic_delta(0.5) == 0
    accountant.compose(SampledEvent(TruncatedPoissonSampling(1.0, 100, 50), gaussian))
    assert accountant.asymptotic_epsilon(1e-5) == math.inf
    accountant = GDPAccountant(asymptotic=True).compose(
        SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, 0.01))
    )
    assert accountant.asymptotic_epsilon(1e-5) == math.inf
    assert accountant.asymptotic_delta(1.0) == 1


def test_asymptotic_is_checked():
    with pytest.raises(TypeError, match="asymptotic"):
        GDPAccountant(asymptotic="yes")
