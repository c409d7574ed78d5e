"""tfdp.accounting.RDPAccountant: orders, composition and the conversion to epsilon."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from tests.accounting.reference import load_reference
from tfdp.accounting import RDPAccountant
from tfdp.accounting.rdp import delta_from_rdp, epsilon_from_rdp
from tfdp.ledger import GaussianSumEvent, PoissonSampling, SampledEvent


def _step(q, z):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z))


def test_equals_reference_or_better():
    for row in load_reference("epsilon_dp_sgd.json"):
        step = _step(row["q"], row["noise_multiplier"])
        epsilon = RDPAccountant().compose(step, row["steps"]).get_epsilon(row["delta"])
        assert epsilon <= row["rdp_dp_accounting"] * (1 + 1e-6)
        assert epsilon >= row["pld_upper"]


def test_moments_accountant_of_abadi_et_al():
    # Figure 2 of arXiv:1607.00133: q = 0.01, sigma = 4, 100 epochs, delta = 1e-5: epsilon 1.26, by
    # the looser conversion epsilon = rdp - log(delta) / (a - 1).
    accountant = RDPAccountant().compose(_step(0.01, 4.0), 10_000)
    moments = np.min(accountant.rdp - math.log(1e-5) / (accountant.orders - 1))
    assert moments == pytest.approx(1.26, abs=0.005)
    assert accountant.get_epsilon(1e-5) < moments


def test_rdp_of_gaussians_adds_up():
    accountant = RDPAccountant([1.5, 2, 30]).compose(GaussianSumEvent(1.0, 2.0), 3)
    accountant.compose(GaussianSumEvent(2.0, 1.0))
    # a / (2 z^2) with 1 / z^2 = 3 / 4 + 4.
    assert accountant.rdp == pytest.approx(np.array([1.5, 2, 30]) * 4.75 / 2, rel=1e-14)


def test_rdp_and_orders_are_copies():
    accountant = RDPAccountant([2.0]).compose(_step(0.1, 1.0))
    before = accountant.rdp
    accountant.rdp[:] = 0
    accountant.orders[:] = 0
    assert accountant.rdp == before
    assert accountant.orders == [2.0]


def test_more_orders_never_cost_more():
    few, more = RDPAccountant([4, 8]), RDPAccountant([4, 8, 8.5, 32])
    for accountant in (few, more):
        accountant.compose(_step(0.01, 1.1), 100)
    assert more.get_epsilon(1e-5) <= few.get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("orders", "error"),
    [([], ValueError), ([1], ValueError), ([2, 0.5], ValueError), ([math.inf], ValueError)]
    + [([math.nan], ValueError), (["2"], TypeError)],
)
def test_orders_are_checked(orders, error):
    with pytest.raises(error, match="orders"):
        RDPAccountant(orders)


def _gaussian_delta(z, epsilon):
    # Balle and Wang 2018, arXiv:1805.06530, theorem 8, with sensitivity 1.
    return stats.norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * stats.norm.cdf(
        -0.5 / z - epsilon * z
    )


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.01])
def test_epsilon_of_gaussian_is_above_the_exact_one_and_not_far(z, delta):
    if _gaussian_delta(z, 0) <= delta:
        exact = 0.0
    else:
        exact = optimize.brentq(lambda e: _gaussian_delta(z, e) - delta, 0, 100, xtol=1e-12)
    epsilon = RDPAccountant().compose(GaussianSumEvent(1.0, z)).get_epsilon(delta)
    assert exact <= epsilon <= 1.3 * exact + 0.02


def test_conversion_by_hand():
    # rdp + log(1/2) - log(2e-3) / 1 = 0.1 - 0.693147... + 6.214608...
    assert epsilon_from_rdp(np.array([2.0]), np.array([0.1]), 1e-3) == pytest.approx(
        5.621460917862, rel=1e-12
    )
    assert delta_from_rdp(np.array([2.0]), np.array([0.1]), 5.621460917862) == pytest.approx(1e-3)


def test_total_variation_shortcut():
    # sqrt(1 - exp(-0.02)) = 0.1407...: below it the shortcut is not valid, above it it is.
    orders, rdp = np.array([1.5]), np.array([0.02])
    assert epsilon_from_rdp(orders, rdp, 0.141) == 0
    assert epsilon_from_rdp(orders, rdp, 0.140) > 0
    assert delta_from_rdp(orders, rdp, 0.0) == pytest.approx(math.sqrt(1 - math.exp(-0.02)))
