"""tfdp.accounting.MomentsAccountant: the paper's moments, by integration, and its figure 2."""

import mpmath
import numpy as np
import pytest

from tfdp.accounting import MomentsAccountant, PRVAccountant, RDPAccountant
from tfdp.events import (
    EpsilonDeltaEvent,
    GaussianSumEvent,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    TruncatedPoissonSampling,
)


def _step(q, z):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z))


def _alpha(q, z, moment):
    """Abadi et al. 2016, section 3.2: log max(E1, E2), integrated with 20 digits."""
    with mpmath.workdps(20):
        q, z = mpmath.mpf(q), mpmath.mpf(z)

        def without(x):
            return mpmath.npdf(x, 0, z)

        def within(x):
            return (1 - q) * without(x) + q * mpmath.npdf(x, 1, z)

        ends = [-12 * z - moment, -4 * z, 0, 1, 4 * z + 1, moment + 1, moment + 1 + 12 * z]
        ends = sorted(set(map(float, ends)))
        first = mpmath.quad(lambda x: without(x) * (without(x) / within(x)) ** moment, ends)
        second = mpmath.quad(lambda x: within(x) * (within(x) / without(x)) ** moment, ends)
        return float(mpmath.log(max(first, second)))


@pytest.mark.parametrize(("q", "z"), [(0.01, 4.0), (0.01, 1.0), (0.2, 2.0)])
def test_moments_equal_integrals_in_both_directions(q, z):
    found = MomentsAccountant().compose(_step(q, z)).get_log_moments()
    assert found.shape == (32,)
    for moment in (1, 5, 32):
        assert found[moment - 1] == pytest.approx(_alpha(q, z, moment), rel=1e-9)


def test_figure_2():
    # q = 0.01, sigma = 4, delta = 1e-5: "1.26 after 100 epochs", of 100 steps each.
    step = _step(0.01, 4.0)
    assert round(MomentsAccountant().compose(step, 100 * 100).get_epsilon(1e-5), 2) == 1.26
    # By hand: the smallest (T alpha - log delta) / lambda.
    by_hand = min(
        (10_000 * _alpha(0.01, 4.0, moment) - np.log(1e-5)) / moment for moment in (18, 19, 20)
    )
    found = MomentsAccountant().compose(step, 10_000).get_epsilon(1e-5)
    assert found == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(("q", "z", "steps"), [(0.01, 4.0, 10_000), (0.02, 0.8, 50), (1.0, 9.0, 9)])
def test_never_below_accountants_that_know_more(q, z, steps):
    accountants = [
        make().compose(_step(q, z), steps)
        for make in (PRVAccountant, RDPAccountant, MomentsAccountant)
    ]
    for delta in (1e-3, 1e-5, 1e-9):
        epsilons = [accountant.get_epsilon(delta) for accountant in accountants]
        assert epsilons == sorted(epsilons)
        assert epsilons[2] > epsilons[0]
    deltas = [accountant.get_delta(2.0) for accountant in accountants]
    assert deltas == sorted(deltas)


def test_log_moments_of_nothing_and_of_no_privacy():
    accountant = MomentsAccountant()
    assert not accountant.get_log_moments().any()
    accountant.compose(PureEpsilonEvent(0.5))
    assert np.all(accountant.get_log_moments() > 0)
    accountant.compose(GaussianSumEvent(1.0, 0.0))
    assert np.all(np.isinf(accountant.get_log_moments()))


def test_log_moments_of_what_fails_are_infinite_and_epsilon_is_not():
    poisson = MomentsAccountant().compose(_step(0.01, 4.0))
    truncated = SampledEvent(TruncatedPoissonSampling(0.01, 1000, 40), GaussianSumEvent(1.0, 4.0))
    accountant = MomentsAccountant().compose(truncated)
    assert np.all(np.isinf(accountant.get_log_moments()))
    assert accountant.get_epsilon(1e-5) == pytest.approx(poisson.get_epsilon(1e-5), rel=1e-3)
    assert accountant.get_delta(0.5) == pytest.approx(poisson.get_delta(0.5), rel=1e-3)
    lost = MomentsAccountant().compose(EpsilonDeltaEvent(0.1, 1e-7))
    assert np.all(np.isinf(lost.get_log_moments()))
    assert lost.get_epsilon(1e-5) < 1
