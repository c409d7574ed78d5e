"""tfdp.accounting.PLDAccountant: upper bounds, and tight ones."""

import math

import pytest
from scipy import optimize, stats

from tests.accounting.reference import load_reference
from tfdp.accounting import PLDAccountant, RDPAccountant
from tfdp.ledger import GaussianSumEvent, PoissonSampling, SampledEvent


def _step(q, z):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z))


def test_equals_reference():
    for row in load_reference("epsilon_dp_sgd.json"):
        step = _step(row["q"], row["noise_multiplier"])
        accountant = PLDAccountant().compose(step, row["steps"])
        epsilon = accountant.get_epsilon(row["delta"])
        assert epsilon == pytest.approx(row["pld_upper"], rel=1e-6)
        assert epsilon > row["pld_lower"]


def _gaussian_epsilon(z, delta):
    """Balle and Wang 2018, arXiv:1805.06530, theorem 8, with sensitivity 1, solved for epsilon."""

    def excess(epsilon):
        above = stats.norm.logcdf(0.5 / z - epsilon * z)
        below = epsilon + stats.norm.logcdf(-0.5 / z - epsilon * z)
        return math.exp(above) * -math.expm1(below - above) - delta

    return optimize.brentq(excess, 0, 10 / z**2 + 100 / z, xtol=1e-12)


@pytest.mark.parametrize(("z", "count"), [(1.0, 1), (4.0, 9), (0.3, 2), (0.02, 1), (1e-3, 1)])
def test_gaussians_equal_the_closed_form(z, count):
    # Gaussians add up: n of them with multiplier z are one with multiplier z / sqrt(n).
    exact = _gaussian_epsilon(z / math.sqrt(count), 1e-5)
    epsilon = PLDAccountant().compose(GaussianSumEvent(1.0, z), count).get_epsilon(1e-5)
    assert exact * (1 - 1e-9) <= epsilon <= exact * (1 + 2e-3)


def test_large_losses_stay_cheap_and_below_rdp():
    pairs = [(_step(0.1, 0.1), 30), (_step(0.5, 0.3), 1000)]
    pld, rdp = PLDAccountant(), RDPAccountant()
    for step, count in pairs:
        pld.compose(step, count)
        rdp.compose(step, count)
    assert 0.8 * rdp.get_epsilon(1e-5) < pld.get_epsilon(1e-5) < rdp.get_epsilon(1e-5)


def test_finer_interval_is_tighter():
    coarse, fine = PLDAccountant(1e-2), PLDAccountant(value_discretization_interval=1e-3)
    for accountant in (coarse, fine):
        accountant.compose(_step(0.01, 1.1), 1000)
    assert coarse.get_epsilon(1e-5) > fine.get_epsilon(1e-5) > 0.5 * coarse.get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("interval", "error"),
    [(0, ValueError), (-1, ValueError), (math.inf, ValueError), ("", TypeError)],
)
def test_interval_is_checked(interval, error):
    with pytest.raises(error, match="value_discretization_interval"):
        PLDAccountant(interval)
