"""tfdp.accounting.Accountant: what its subclasses need not care about."""

import math

import pytest
from scipy import stats

from tfdp.accounting import Accountant, BasicComposition, PRVAccountant, RDPAccountant
from tfdp.accounting.mechanisms import FixedSizeGaussian, PureEpsilon, SampledGaussian
from tfdp.events import (
    ComposedEvent,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger

ADD, REPLACE, ZERO = NeighboringRelation
GAUSSIAN = GaussianSumEvent(1.0, 2.0)


class _Pure(Accountant):
    """Adds up epsilons; gives the terms it was asked about."""

    prices = {PureEpsilon: None}

    def _epsilon(self, delta):
        return sum(mechanism.epsilon * count for mechanism, count in self._terms())

    def _delta(self, epsilon):
        return 0.0 if epsilon >= self._epsilon(0.5) else 1.0


class _Gaussian(_Pure):
    prices = {SampledGaussian: None}


def test_terms_are_distinct_and_sorted_whatever_the_order():
    events = [PureEpsilonEvent(2.0), PureEpsilonEvent(1.0), PureEpsilonEvent(2.0)]
    for order in (events, events[::-1]):
        accountant = _Pure()
        for event in order:
            accountant.compose(event)
        assert accountant._terms() == [(PureEpsilon(1.0), 1), (PureEpsilon(2.0), 2)]
        assert accountant._terms() is accountant._terms()


def test_mechanism_without_a_price_is_charged_as_a_dearer_one():
    accountant = _Pure().compose(ExponentialMechanismEvent(0.5), 2)
    accountant.compose(LaplaceSumEvent(1.0, 4.0))
    assert accountant.get_epsilon(1e-5) == 1.25
    fixed_size = SampledEvent(FixedSizeSampling(1, 100), GAUSSIAN, REPLACE)
    assert _Gaussian().compose(fixed_size)._terms() == [(SampledGaussian(1.0, 1.0), 1)]
    assert RDPAccountant().compose(fixed_size)._terms() == [(FixedSizeGaussian(1, 100, 1.0), 1)]


@pytest.mark.parametrize(
    ("accountant", "event", "message"),
    [
        (_Pure(), GAUSSIAN, "_Pure.*SampledGaussian.*ADD_OR_REMOVE_ONE.*prices PureEpsilon"),
        (
            _Gaussian(),
            SampledEvent(PoissonSampling(0.1), ExponentialMechanismEvent(1.0), ZERO),
            "_Gaussian.*PureEpsilon.*ZERO_OUT.*prices SampledGaussian",
        ),
    ],
)
def test_mechanism_without_any_price_is_refused_by_name(accountant, event, message):
    assert not accountant.supports(event)
    with pytest.raises(UnsupportedEventError, match=message):
        accountant.compose(event)
    assert accountant._terms() == []
    assert accountant.neighboring_relation is None


def test_subclass_is_not_asked_about_nothing_or_no_privacy():
    class Silent(_Pure):
        def _epsilon(self, delta):
            raise AssertionError

        _delta = _epsilon

    accountant = Silent().compose(ComposedEvent(()), 5)
    assert (accountant.get_epsilon(1e-5), accountant.get_delta(1.0)) == (0, 0)
    accountant.compose(PureEpsilonEvent(1.0)).compose(NonPrivateEvent())
    assert (accountant.get_epsilon(1e-5), accountant.get_delta(1.0)) == (math.inf, 1)


def test_begun_passes_are_rounded_up_once_over_everything():
    half_pass = SampledEvent(ShuffledSampling(10, 100), PureEpsilonEvent(1.0), ZERO)
    accountant = _Pure()
    for _ in range(4):
        accountant.compose(half_pass, 5)
    assert accountant._terms() == [(PureEpsilon(1.0), 2)]


def test_entries_are_composed_at_once():
    ledger = PrivacyLedger()
    for _ in range(3):
        ledger.append(PureEpsilonEvent(1.0), 2)
        ledger.append(PureEpsilonEvent(0.5))
    assert ledger.replay(_Pure()).get_epsilon(1e-5) == 7.5
    # Events that exist only while they are handed over are not taken for each other.
    entries = ((PureEpsilonEvent(float(k)), 1) for k in range(1, 50))
    assert _Pure().compose_entries(entries).get_epsilon(1e-5) == sum(range(1, 50))


def test_unsupported_entry_is_refused():
    with pytest.raises(UnsupportedEventError, match="SampledGaussian"):
        _Pure().compose_entries([(PureEpsilonEvent(1.0), 1), (GAUSSIAN, 1)])


# Of Gaussian sums truncation has a price of its own (tests/accounting/renyi/truncated_test.py).
LAPLACE = LaplaceSumEvent(1.0, 2.0)
TRUNCATED = SampledEvent(TruncatedPoissonSampling(0.01, 10_000, 180), LAPLACE)
POISSON = SampledEvent(PoissonSampling(0.01), LAPLACE)


def test_delta_of_truncated_samples():
    # delta + (1 + e^epsilon) steps P(Binomial(N + 1, q) > 180).
    steps, tail = 100, stats.binom.sf(180, 10_001, 0.01)
    assert 1e-13 < steps * tail < 1e-9
    truncated = RDPAccountant().compose(TRUNCATED, steps)
    poisson = RDPAccountant().compose(POISSON, steps)
    for epsilon in (0.0, 0.5, 2.0):
        # What holds at a smaller epsilon holds, too.
        expected = min(
            poisson.get_delta(e) + (1 + math.exp(e)) * steps * tail
            for e in (epsilon, 0.0, 0.1, 0.3, 1.0)
            if e <= epsilon
        )
        assert truncated.get_delta(epsilon) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 3e-9])
def test_epsilon_of_truncated_samples_is_the_smallest_that_delta_allows(delta):
    truncated = RDPAccountant().compose(TRUNCATED, 100)
    epsilon = truncated.get_epsilon(delta)
    assert epsilon > RDPAccountant().compose(POISSON, 100).get_epsilon(delta)
    assert truncated.get_delta(epsilon) == pytest.approx(delta, rel=1e-4)
    assert truncated.get_delta(epsilon * 0.999) > delta


@pytest.mark.parametrize("make", [RDPAccountant, PRVAccountant, BasicComposition])
def test_epsilon_beside_what_fails_and_what_is_lost_is_within_delta(make):
    sampling = TruncatedPoissonSampling(0.5, 20, 16)
    accountant = make().compose(SampledEvent(sampling, EpsilonDeltaEvent(0.5, 0.4), ZERO))
    for delta in (0.405, 0.41, 0.43):
        epsilon = accountant.get_epsilon(delta)
        assert 0 < epsilon < 1
        assert accountant.get_delta(epsilon) <= delta * (1 + 1e-6)


def test_truncation_that_delta_does_not_cover_is_infinite():
    often = SampledEvent(TruncatedPoissonSampling(0.01, 10_000, 110), LAPLACE)
    accountant = RDPAccountant().compose(often)
    assert accountant.get_epsilon(1e-5) == math.inf
    assert accountant.get_delta(1.0) > 0.1
    assert accountant.compose(often, 1000).get_delta(1.0) == 1


def test_truncation_of_nothing_released_still_needs_no_more_than_its_probability():
    nothing = SampledEvent(TruncatedPoissonSampling(0.01, 10_000, 180), ComposedEvent(()))
    assert RDPAccountant().compose(nothing).get_epsilon(1e-5) == 0


def test_subclass_with_compose_and_get_epsilon_alone():
    class Counter(Accountant):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def compose(self, event, count=1):
            self.steps += count
            return self

        def get_epsilon(self, target_delta):
            return 0.5 * self.steps

    ledger = PrivacyLedger()
    ledger.append(GAUSSIAN, 3)
    ledger.append(PureEpsilonEvent(1.0))
    assert ledger.replay(Counter()).get_epsilon(1e-5) == ledger.epsilon(1e-5, Counter) == 2.0
    assert ledger.remaining(3.0, 1e-5, accountant=Counter()).events == 2
    with pytest.raises(NotImplementedError, match="PureEpsilonOnly has no epsilon"):
        type("PureEpsilonOnly", (Accountant,), {"prices": {PureEpsilon: None}})().compose(
            PureEpsilonEvent(1.0)
        ).get_epsilon(1e-5)


@pytest.mark.parametrize("accountant", [PRVAccountant, RDPAccountant])
@pytest.mark.parametrize(
    "event",
    [
        DiscreteGaussianSumEvent(1.0, 50.0, 1.0, 1000),
        SampledEvent(TruncatedPoissonSampling(0.01, 1000, 20), LaplaceSumEvent(1.0, 1000.0), ZERO),
    ],
    ids=["discrete", "truncated"],
)
def test_delta_beside_failures_hardly_rises_with_epsilon(accountant, event):
    """Failures weigh e^epsilon, and the delta at a smaller epsilon is one, too."""
    made = accountant().compose(event)
    assert made._failure_probability() > 0
    deltas = [made.get_delta(epsilon) for epsilon in (0.0, 0.1, 0.5, 1.0, 5.0, 20.0, 1e3)]
    least = math.inf
    for delta in deltas:
        assert delta <= 1.3 * least
        least = min(least, delta)
