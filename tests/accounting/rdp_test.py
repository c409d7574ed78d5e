"""tfdp.accounting.RDPAccountant: orders, composition and the best epsilon of all orders."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from tests.accounting.reference import load_reference
from tfdp.accounting import RDPAccountant
from tfdp.accounting.renyi.conversion import epsilon_at_order
from tfdp.accounting.renyi.gaussian import rdp_sampled_gaussian
from tfdp.events import (
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    PureEpsilonEvent,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    SampledEvent,
    TruncatedPoissonSampling,
)
from tfdp.ledger import PrivacyLedger

ADD, REPLACE, ZERO = NeighboringRelation


def _step(q, z):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z))


def test_equals_reference_or_better():
    for row in load_reference("epsilon_dp_sgd.json"):
        step = _step(row["q"], row["noise_multiplier"])
        epsilon = RDPAccountant().compose(step, row["steps"]).get_epsilon(row["delta"])
        assert epsilon <= row["rdp_dp_accounting"]
        assert epsilon >= row["pld_upper"]


def test_moments_accountant_of_abadi_et_al():
    # Figure 2 of arXiv:1607.00133: q = 0.01, sigma = 4, 100 epochs, delta = 1e-5: epsilon 1.26, by
    # the looser conversion epsilon = rdp - log(delta) / (a - 1).
    accountant = RDPAccountant().compose(_step(0.01, 4.0), 10_000)
    orders = np.arange(2.0, 65.0)
    moments = np.min(accountant.get_rdp(orders) - math.log(1e-5) / (orders - 1))
    assert moments == pytest.approx(1.26, abs=0.005)
    assert accountant.get_epsilon(1e-5) < moments


def test_rdp_of_gaussians_adds_up():
    accountant = RDPAccountant().compose(GaussianSumEvent(1.0, 2.0), 3)
    accountant.compose(GaussianSumEvent(2.0, 1.0))
    # a / (2 z^2) with 1 / z^2 = 3 / 4 + 4.
    assert accountant.get_rdp([1.5, 2, 30]) == pytest.approx(
        np.array([1.5, 2, 30]) * 4.75 / 2, rel=1e-14
    )


def test_rdp_of_nothing_and_of_no_privacy():
    assert np.all(RDPAccountant().get_rdp([1.5, 2]) == 0)
    assert np.all(np.isinf(RDPAccountant().compose(NonPrivateEvent()).get_rdp([1.5, 2])))


def test_rdp_of_what_fails_is_infinite_and_epsilon_is_not():
    # One of 0.9 units in the mean is dropped where two come, which moves sums by two.
    often = SampledEvent(TruncatedPoissonSampling(0.5, 3, 1), GaussianSumEvent(1.0, 1.0))
    rarely = SampledEvent(TruncatedPoissonSampling(0.01, 1000, 40), GaussianSumEvent(1.0, 4.0))
    for event in (often, rarely, EpsilonDeltaEvent(0.1, 1e-9)):
        assert np.all(np.isinf(RDPAccountant().compose(event).get_rdp([1.5, 2, math.inf])))
    poisson = RDPAccountant().compose(_step(0.01, 4.0)).get_epsilon(1e-5)
    assert RDPAccountant().compose(rarely).get_epsilon(1e-5) == pytest.approx(poisson, rel=1e-3)


def test_given_orders_are_the_only_ones():
    accountant = RDPAccountant([4, 8]).compose(_step(0.01, 1.1), 100)
    rdp = accountant.get_rdp([4, 8])
    expected = min(epsilon_at_order(a, r, 1e-5) for a, r in zip((4.0, 8.0), rdp, strict=True))
    assert accountant.get_epsilon(1e-5) == expected
    assert accountant.get_optimal_order(1e-5) in (4, 8)
    accountant.orders[:] = 0
    assert accountant.orders.tolist() == [4.0, 8.0]
    assert RDPAccountant().orders is None


def test_all_orders_are_better_than_any_list():
    few, more, all_ = RDPAccountant([4, 8]), RDPAccountant([4, 8, 8.5, 32]), RDPAccountant()
    epsilons = [a.compose(_step(0.01, 1.1), 100).get_epsilon(1e-5) for a in (few, more, all_)]
    assert epsilons == sorted(epsilons, reverse=True)
    dense = 1 + np.geomspace(1e-3, 1e3, 2000)
    grid = RDPAccountant(dense).compose(_step(0.01, 1.1), 100).get_epsilon(1e-5)
    assert epsilons[-1] <= grid * (1 + 1e-6)
    assert epsilons[-1] >= grid * (1 - 1e-4)


@pytest.mark.parametrize(
    ("orders", "error"),
    [([], ValueError), ([1], ValueError), ([2, 0.5], ValueError), ([math.nan], ValueError)]
    + [([math.nan], ValueError), (["2"], TypeError)],
)
def test_orders_are_checked(orders, error):
    with pytest.raises(error, match="orders"):
        RDPAccountant(orders)
    if orders:
        with pytest.raises(error, match="orders"):
            RDPAccountant().get_rdp(orders)


def test_no_optimal_order_of_nothing():
    for accountant in (RDPAccountant(), RDPAccountant().compose(NonPrivateEvent())):
        with pytest.raises(ValueError, match="No order"):
            accountant.get_optimal_order(1e-5)


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


@pytest.mark.parametrize("q", [1.0, 0.01])
def test_orders_far_from_any_list_are_found(q):
    # Little privacy and very much of it: the best orders are below 1.01 and above 10,000.
    little = RDPAccountant().compose(_step(q, 0.01))
    assert little.get_optimal_order(1e-5) < 1.1
    much = RDPAccountant().compose(_step(q, 1e4))
    assert much.get_optimal_order(1e-12) > 10_000
    exact_rdp = rdp_sampled_gaussian(q, 1e4, np.array([much.get_optimal_order(1e-12)]))[0]
    assert much.get_epsilon(1e-12) == pytest.approx(
        epsilon_at_order(much.get_optimal_order(1e-12), exact_rdp, 1e-12), rel=1e-9
    )


def _random_steps(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        _step(float(q), float(z))
        for q, z in zip(10 ** rng.uniform(-4, -2, count), rng.uniform(0.7, 4, count), strict=True)
    ]


def test_many_different_steps_find_the_best_order_too():
    accountant = RDPAccountant()
    for step in _random_steps(1000):
        accountant.compose(step, 20)
    epsilon, order = accountant.get_epsilon(1e-5), accountant.get_optimal_order(1e-5)
    orders = 1 + (order - 1) * np.exp(np.linspace(-0.5, 0.5, 41))
    rdp = accountant.get_rdp(orders)
    epsilons = [epsilon_at_order(a, r, 1e-5) for a, r in zip(orders, rdp, strict=True)]
    assert min(epsilons) * (1 - 1e-6) <= epsilon <= min(epsilons) * (1 + 1e-6)
    assert accountant.get_delta(epsilon) == pytest.approx(1e-5, rel=1e-4)


def test_one_dear_step_among_many_is_not_overlooked():
    accountant = RDPAccountant()
    for step in _random_steps(1000):
        accountant.compose(step)
    before = accountant.get_epsilon(1e-5)
    accountant.compose(_step(0.5, 0.1))
    alone = RDPAccountant().compose(_step(0.5, 0.1)).get_epsilon(1e-5)
    assert before < alone <= accountant.get_epsilon(1e-5) * (1 + 1e-6)


def test_ledger_of_alternating_steps_equals_the_sum():
    first, second = _step(0.01, 1.0), _step(0.02, 2.0)
    ledger = PrivacyLedger()
    for _ in range(50):
        ledger.append(first)
        ledger.append(second)
    assert len(ledger) == 100
    together = RDPAccountant().compose(second, 50).compose(first, 50)
    assert ledger.replay(RDPAccountant()).get_epsilon(1e-5) == together.get_epsilon(1e-5)


EVENTS = {
    "poisson": _step(0.1, 1.5),
    "gaussian": GaussianSumEvent(1.0, 4.0),
    "laplace": SampledEvent(PoissonSampling(0.2), LaplaceSumEvent(1.0, 2.0)),
    "exponential": ExponentialMechanismEvent(0.3),
    "pure": PureEpsilonEvent(0.2),
    "fixed_size": SampledEvent(FixedSizeSampling(1, 50), GaussianSumEvent(1.0, 2.0), REPLACE),
    "fixed_size_add": SampledEvent(FixedSizeSampling(1, 50), GaussianSumEvent(1.0, 2.0)),
    "poisson_replace": SampledEvent(PoissonSampling(0.02), GaussianSumEvent(1.0, 2.0), REPLACE),
    "response": SampledEvent(FullBatchSampling(), RandomizedResponseEvent(0.9, 4), ZERO),
    "response_replace": SampledEvent(FullBatchSampling(), RandomizedResponseEvent(0.9, 4), REPLACE),
}


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_has_a_price_that_inverts_and_grows(name):
    one, five = (RDPAccountant().compose(EVENTS[name], count) for count in (1, 5))
    assert five.get_rdp([2.0, 9.5]) == pytest.approx(5 * one.get_rdp([2.0, 9.5]), rel=1e-12)
    assert 0 < one.get_epsilon(1e-6) < five.get_epsilon(1e-6) < 20
    assert five.get_delta(five.get_epsilon(1e-6)) == pytest.approx(1e-6, rel=1e-4)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["poisson", "gaussian", "laplace", "pure"]), st.integers(1, 9)),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_order_and_grouping_of_composition_are_irrelevant(pairs, random):
    ledgers = [PrivacyLedger(), PrivacyLedger()]
    singles = [EVENTS[name] for name, count in pairs for _ in range(count)]
    random.shuffle(singles)
    for event in singles:
        random.choice(ledgers).append(event)
    accountant = RDPAccountant()
    for ledger in ledgers:  # Of two ledgers one after the other...
        ledger.replay(accountant)
    together = RDPAccountant()
    for name, count in pairs:  # ...and of all as one.
        together.compose(EVENTS[name], count)
    assert accountant.get_epsilon(1e-5) == together.get_epsilon(1e-5)


@settings(max_examples=40)
@given(st.floats(1e-5, 0.9), st.floats(0.3, 20), st.integers(1, 10_000), st.floats(1.01, 1.5))
def test_monotone_in_steps_probability_and_noise(q, z, steps, ratio):
    def epsilon(q, z, steps):
        return RDPAccountant().compose(_step(q, z), steps).get_epsilon(1e-6)

    base = epsilon(q, z, steps)
    assert epsilon(q, z, steps + 1) >= base * (1 - 1e-6)
    assert epsilon(min(1.0, q * ratio), z, steps) >= base * (1 - 1e-6)
    assert epsilon(q, z * ratio, steps) <= base * (1 + 1e-6)


def test_order_infinity_is_the_largest_loss():
    pure = RDPAccountant([math.inf]).compose(PureEpsilonEvent(0.5), 2)
    np.testing.assert_allclose(pure.get_rdp([math.inf, 1e12]), [1.0, 1.0], rtol=1e-9)
    # Randomized response of epsilon 1: (e - e^0.3) / (e + 1), and the epsilon of delta 1e-3.
    assert pure.get_delta(0.3) == pytest.approx((math.e - math.exp(0.3)) / (math.e + 1))
    epsilon = math.log(math.e - 1e-3 * (math.e + 1))
    assert pure.get_epsilon(1e-3) == pytest.approx(epsilon)
    assert (pure.get_epsilon(0), pure.get_delta(1.0)) == (1.0, 0.0)
    gaussian = RDPAccountant([2.0, math.inf]).compose(GaussianSumEvent(1.0, 1.0))
    assert gaussian.get_rdp([2.0, math.inf]).tolist() == [1.0, math.inf]
    assert math.isfinite(gaussian.get_epsilon(1e-5))


def test_an_order_is_asked_for_a_delta_between_0_and_1():
    accountant = RDPAccountant().compose(GaussianSumEvent(1.0, 1.0))
    for delta in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match="target_delta"):
            accountant.get_optimal_order(delta)


@pytest.mark.parametrize("orders", [5, 2.5, "12"])
def test_orders_are_a_list(orders):
    with pytest.raises(TypeError, match="orders must be a list"):
        RDPAccountant(orders=orders)


def test_divergences_are_computed_up_to_a_largest_order():
    events = [
        SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, 1.0)),
        LaplaceSumEvent(1.0, 1.0),
        SampledEvent(RandomAllocationSampling(10), GaussianSumEvent(1.0, 1.0)),
        PureEpsilonEvent(5.0),
        ExponentialMechanismEvent(5.0),
    ]
    for event in events:
        accountant = RDPAccountant().compose(event)
        assert not np.isnan(accountant.get_rdp([1e15, math.inf])).any()
        for order in (1.1e15, 1e308):
            with pytest.raises(ValueError, match="orders"):
                accountant.get_rdp([order])
    with pytest.raises(ValueError, match="orders"):
        RDPAccountant(orders=[2.0, 1e16])
