"""tfdp.accounting.groups: several neighbours in a row."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from tfdp.accounting import PRVAccountant, RDPAccountant, group_delta, group_epsilon
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.accounting.renyi.group import group_rdp
from tfdp.events import (
    FixedSizeSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    RunEvent,
    SampledEvent,
    SelectedRunEvent,
    TruncatedPoissonSampling,
    UnsupportedEventError,
)

ADD, REPLACE, ZERO = NeighboringRelation


class _Pure:
    """(0.5, 0)-private, and (epsilon, 1e-6)-private at any epsilon below."""

    def get_delta(self, epsilon):
        return 0.0 if epsilon >= 0.5 else 1e-6


def test_delta_is_the_geometric_sum():
    # Three in a row at 0.9: (1 + e^0.3 + e^0.6) delta.
    expected = 1e-6 * (1 + math.exp(0.3) + math.exp(0.6))
    assert group_delta(_Pure(), 3, 0.9) == pytest.approx(expected, rel=1e-12)
    assert group_delta(_Pure(), 4, 0.0) == pytest.approx(4e-6, rel=1e-12)
    assert group_delta(_Pure(), 3, 1.5) == 0


def test_epsilon_of_what_is_pure_is_in_proportion():
    assert group_epsilon(_Pure(), 3, 1e-9) == pytest.approx(1.5, rel=1e-8)
    assert group_epsilon(_Pure(), 3, 1e-5) == 0
    accountant = PRVAccountant().compose(PureEpsilonEvent(0.1), 2)
    assert group_epsilon(accountant, 5, 1e-12) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("make", [PRVAccountant, RDPAccountant])
def test_never_below_what_is_exact(make, size):
    accountant = make().compose(GaussianSumEvent(1.0, 20.0), 4)
    exact = gaussian_epsilon(size / 10, 1e-5)
    found = group_epsilon(accountant, size, 1e-5)
    assert found >= exact * (1 - 1e-9)
    assert found < 2.5 * exact
    assert group_delta(accountant, size, found) <= 1e-5


def test_accountants_of_groups_know_more():
    step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 4.0))
    by_theorem = group_epsilon(PRVAccountant().compose(step, 500), 3, 1e-5)
    assert PRVAccountant(group_size=3).compose(step, 500).get_epsilon(1e-5) < by_theorem


def test_no_privacy_has_no_epsilon():
    accountant = PRVAccountant().compose(GaussianSumEvent(1.0, 0.0))
    assert group_delta(accountant, 2, 5.0) == 1
    assert group_epsilon(accountant, 2, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("size", "delta", "error", "match"),
    [
        (0, 1e-5, ValueError, "group_size"),
        (1.5, 1e-5, TypeError, "group_size"),
        (2, 0, ValueError, "target_delta"),
        (2, "small", TypeError, "target_delta"),
    ],
)
def test_arguments_are_checked(size, delta, error, match):
    with pytest.raises(error, match=match):
        group_epsilon(_Pure(), size, delta)
    with pytest.raises(ValueError, match="target_epsilon"):
        group_delta(_Pure(), 2, -1.0)


# --- Samples of fixed size, of fewer units on the way ---


def _fixed(n, population, z, relation=ADD):
    return SampledEvent(FixedSizeSampling(n, population), GaussianSumEvent(1.0, z), relation)


def _delta_of_fixed_size(n, population, k, z, epsilon):
    """Exactly: k of N units have the value 1, all others -1, and the k are removed."""
    i = np.arange(min(k, n) + 1)
    log_weights = stats.hypergeom.logpmf(i, population, k, n)
    usual = np.isfinite(log_weights)
    i, log_weights = i[usual], log_weights[usual]

    def loss(x):
        return special.logsumexp(log_weights + (4 * x * i - 4 * i * i) / (2 * z * z))

    # Of the outputs x above this, delta is P - e^epsilon Q.
    x = optimize.brentq(lambda x: loss(x) - epsilon, -60 * z - 20, 60 * z + 4 * k + 20)
    within = np.exp(log_weights) @ special.ndtr(-(x - 2 * i) / z)
    return float(within - math.exp(epsilon) * special.ndtr(-x / z))


@pytest.mark.parametrize(
    ("n", "population", "k", "z"),
    [(4, 5, 2, 0.3), (2, 4, 2, 0.5), (5, 10, 3, 1.0), (5, 10, 4, 1.0), (50, 100, 10, 2.0)]
    + [(1, 10, 2, 0.2), (1, 100, 5, 0.2), (10, 1000, 20, 0.5)],
)
def test_delta_of_a_group_covers_samples_of_fixed_size(n, population, k, z):
    event = _fixed(n, population, z)
    accountants = [make(group_size=k).compose(event) for make in (PRVAccountant, RDPAccountant)]
    neighbours = PRVAccountant().compose(event)
    for epsilon in (1e-9, 0.05, 0.2, 1.0, 3.0):
        exact = _delta_of_fixed_size(n, population, k, z, epsilon)
        for accountant in accountants:
            assert accountant.get_delta(epsilon) >= exact
        assert group_delta(neighbours, k, epsilon) >= exact


@pytest.mark.parametrize(
    ("n", "population", "k", "z", "delta"),
    [(2, 100, 5, 0.5, 0.05), (2, 4, 2, 0.5, 0.75), (5, 10, 3, 1.0, 0.5)],
)
def test_epsilon_of_a_group_covers_samples_of_fixed_size(n, population, k, z, delta):
    found = PRVAccountant(group_size=k).compose(_fixed(n, population, z)).get_epsilon(delta)
    assert _delta_of_fixed_size(n, population, k, z, found) <= delta
    # And it is no more than it has to be by far.
    assert _delta_of_fixed_size(n, population, k, z, 0.4 * found) > delta


STEPS = [
    # What is sampled, of which group, and what neighbours on the way cost.
    (_fixed(10, 100, 4.0), 3, SampledEvent(PoissonSampling(10 / 98), GaussianSumEvent(2.0, 4.0))),
    (_fixed(10, 12, 9.0), 3, GaussianSumEvent(2.0, 9.0)),
    (_fixed(10, 12, 9.0), 4, GaussianSumEvent(2.0, 9.0)),
    (
        SampledEvent(FixedSizeSampling(10, 100), LaplaceSumEvent(1.0, 9.0)),
        3,
        SampledEvent(PoissonSampling(10 / 98), LaplaceSumEvent(2.0, 9.0)),
    ),
]


@pytest.mark.parametrize(("event", "size", "expected"), STEPS, ids=repr)
def test_neighbours_on_the_way_have_fewer_units(event, size, expected):
    for make in (PRVAccountant, RDPAccountant):
        found = make(group_size=size).compose(event, 7).get_epsilon(1e-5)
        assert found == make(group_size=size).compose(expected, 7).get_epsilon(1e-5)
        one = make().compose(event, 7)
        bound = group_epsilon(one, size, 1e-3)
        assert bound == group_epsilon(make().compose(expected, 7), size, 1e-3)
        assert one.get_epsilon(1e-5) == make().compose(event, 7).get_epsilon(1e-5)


def test_steps_of_selected_runs_are_those_on_the_way_too():
    def selected(step):
        return SelectedRunEvent((RunEvent((step,), (3,)),), 1.0, 0.1)

    event, size, expected = STEPS[0]
    found, wanted = (RDPAccountant(group_size=size).compose(selected(e)) for e in (event, expected))
    assert found.get_epsilon(1e-5) == wanted.get_epsilon(1e-5)


def test_populations_that_stay_the_same_cost_the_same():
    for relation in (REPLACE, ZERO):
        one = PRVAccountant().compose(_fixed(10, 100, 4.0, relation))
        assert one.on_the_way(3).get_delta(0.3) == one.get_delta(0.3)
    renyi = RDPAccountant(group_size=3).compose(_fixed(10, 100, 4.0, REPLACE))
    one = RDPAccountant().compose(_fixed(10, 100, 4.0, REPLACE))
    orders = np.array([1.5, 2.0, 9.0])
    assert renyi.get_rdp(orders) == pytest.approx(group_rdp(one.get_rdp, 3)(orders), rel=1e-12)


def test_a_group_may_be_too_large_for_a_sample_that_holds_every_other_unit():
    # Of 3 and one more unit nothing is ever dropped, of 3 and two more it is.
    event = SampledEvent(TruncatedPoissonSampling(0.9, 3, 4), GaussianSumEvent(1.0, 4.0))
    RDPAccountant(group_size=1).compose(event)
    with pytest.raises(UnsupportedEventError, match="Truncated"):
        RDPAccountant(group_size=2).compose(event)
    poisson = SampledEvent(PoissonSampling(0.9), GaussianSumEvent(1.0, 4.0))
    dear, cheap = (PRVAccountant(group_size=2).compose(each) for each in (event, poisson))
    assert dear.get_delta(1.0) > cheap.get_delta(1.0)
    more = SampledEvent(TruncatedPoissonSampling(0.9, 4, 4), GaussianSumEvent(1.0, 4.0))
    expected = PRVAccountant().compose(more).get_delta(0.5) * (1 + math.exp(0.5))
    found = group_delta(PRVAccountant().compose(event), 2, 1.0)
    assert found == pytest.approx(expected, rel=1e-12)


def test_whoever_prices_in_a_way_of_its_own_is_asked_as_it_is():
    class Own(RDPAccountant):
        def compose(self, event, count=1):
            return super().compose(event, 2 * count)

    own = Own().compose(_fixed(10, 100, 4.0))
    assert own.on_the_way(3) is own
    assert group_delta(own, 3, 1.0) > group_delta(RDPAccountant().compose(STEPS[0][2]), 3, 1.0)
