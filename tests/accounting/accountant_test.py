"""What every accountant of tfdp promises, shown for each."""

import copy
import math
import pickle

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.accounting.kinds import DELTA, KINDS, epsilon_of
from tfdp.accounting import (
    ACCOUNTANTS,
    Accountant,
    BasicComposition,
    PLDAccountant,
    PRVAccountant,
    RDPAccountant,
    StrongComposition,
    make_accountant,
)
from tfdp.events import (
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    EpsilonDeltaEvent,
    Event,
    ExponentialMechanismEvent,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    PureEpsilonEvent,
    RandomizedResponseEvent,
    SampledEvent,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger

ADD, REPLACE, ZERO = NeighboringRelation


GAUSSIAN = GaussianSumEvent(1.0, 2.0)


class _OtherEvent(Event):
    pass


class _OtherSampling(Sampling):
    pass


def test_all_of_the_registry_are_here():
    ours = {name: make_accountant(name) for name in ACCOUNTANTS if "." not in name}
    # What is drawn holds with a probability, and has tests of its own: monte_carlo_test.py.
    assert {name: type(made) for name, made in ours.items() if made.confidence is None} == {
        name: kind.make for name, kind in KINDS.items()
    }


def test_is_accountant(make):
    assert isinstance(make(), Accountant)


def test_nothing_costs_nothing(make):
    accountant = make()
    assert accountant.neighboring_relation is None
    assert accountant.get_epsilon(DELTA) == 0
    assert accountant.get_delta(0) == 0
    accountant.compose(ComposedEvent(()), 1000)
    assert accountant.get_epsilon(DELTA) == 0
    assert accountant.get_delta(0) == 0


def test_compose_returns_the_accountant(make):
    accountant = make()
    assert accountant.compose(GAUSSIAN, 3).compose(GAUSSIAN) is accountant


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (_OtherEvent(), "_OtherEvent"),
        (ComposedEvent((GAUSSIAN, _OtherEvent())), "_OtherEvent"),
        (SampledEvent(PoissonSampling(0.1), _OtherEvent()), "_OtherEvent"),
        (SampledEvent(_OtherSampling(), GAUSSIAN), "_OtherSampling"),
        (RandomizedResponseEvent(0.5, 2), "RandomizedResponseEvent"),
        (SampledEvent(FullBatchSampling(), GAUSSIAN, privacy_unit="user"), "'user'"),
    ],
    ids=["event", "composed", "sampled", "sampling", "response", "unit"],
)
def test_unsupported_is_refused_by_name_and_leaves_the_accountant(kind, event, name):
    step = SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 200.0))
    accountant = kind.make().compose(step, 100)
    before = accountant.get_epsilon(DELTA)
    assert not accountant.supports(event)
    with pytest.raises(UnsupportedEventError, match=name):
        accountant.compose(event, 3)
    assert accountant.get_epsilon(DELTA) == before
    assert accountant.neighboring_relation is ADD
    assert accountant.supports(step)


def test_refused_first_event_does_not_set_the_relation(make):
    accountant = make()
    with pytest.raises(UnsupportedEventError):
        accountant.compose(SampledEvent(PoissonSampling(0.1), _OtherEvent(), REPLACE))
    assert accountant.neighboring_relation is None
    assert accountant.supports(SampledEvent(FullBatchSampling(), GAUSSIAN, ZERO))


@pytest.mark.parametrize(
    "event",
    [
        NonPrivateEvent(),
        GaussianSumEvent(1.0, 0.0),
        GaussianSumEvent(1.0, 2.0, seeded=True),
        LaplaceSumEvent(1.0, 0.0),
        LaplaceSumEvent(1.0, 2.0, seeded=True),
        ComposedEvent((GAUSSIAN, NonPrivateEvent())),
        SampledEvent(PoissonSampling(1e-6), GaussianSumEvent(1.0, 2.0, seeded=True)),
        SampledEvent(ShuffledSampling(10, 100), NonPrivateEvent()),
    ],
    ids=["non_private", "zero", "seeded", "laplace", "laplace_seeded", "part", "sampled", "pass"],
)
def test_no_noise_is_infinite(kind, event):
    accountant = kind.make().compose(kind.step(), 10).compose(event)
    assert accountant.get_epsilon(DELTA) == math.inf
    assert accountant.get_delta(10.0) == 1


def test_monotone_in_steps_sampling_noise_and_bound(kind):
    epsilons = [
        epsilon_of(kind.make, (kind.step(), 1000)),
        epsilon_of(kind.make, (kind.step(), 1001)),
        epsilon_of(kind.make, (kind.step(q=0.0102), 1001)),
        epsilon_of(kind.make, (kind.step(q=0.0102, stddev=1.95), 1001)),
        epsilon_of(kind.make, (kind.step(q=0.0102, stddev=1.95, bound=1.05), 1001)),
    ]
    assert np.all(np.diff(epsilons) > 0)
    assert epsilons[0] > 0


def test_epsilon_falls_with_delta(kind):
    accountant = kind.make().compose(kind.step(), 1000)
    assert accountant.get_epsilon(1e-6) > accountant.get_epsilon(1e-5) > 0


@pytest.mark.parametrize("sampled", [True, False])
def test_int_equals_float(kind, sampled):
    ints, floats = GaussianSumEvent(2, 12), GaussianSumEvent(2.0, 12.0)
    if sampled and kind.sampled:
        ints = SampledEvent(PoissonSampling(0.05), ints)
        floats = SampledEvent(PoissonSampling(0.05), floats)
    epsilon = epsilon_of(kind.make, (ints, 100))
    assert epsilon == epsilon_of(kind.make, (floats, 100))
    assert epsilon == epsilon_of(kind.make, (ints, np.int64(100)))
    assert 0.1 < epsilon < 300


def test_k_fold_equals_k_times(kind):
    at_once, one_by_one = kind.make().compose(kind.step(), 60), kind.make()
    for _ in range(60):
        one_by_one.compose(kind.step())
    assert at_once.get_epsilon(DELTA) == one_by_one.get_epsilon(DELTA) > 0


def test_composing_goes_on_after_asking(kind):
    accountant = kind.make().compose(kind.step(), 500)
    first = accountant.get_epsilon(DELTA)
    accountant.compose(kind.step(), 500)
    assert accountant.get_epsilon(DELTA) == epsilon_of(kind.make, (kind.step(), 1000)) > first


def test_asking_for_one_delta_does_not_change_another(kind):
    accountant = kind.make().compose(kind.step(), 500)
    for delta in (1e-9, 1e-2):
        accountant.get_epsilon(delta)
    accountant.get_delta(0.3)
    assert accountant.get_epsilon(DELTA) == epsilon_of(kind.make, (kind.step(), 500))


_PAIRS = st.lists(
    st.tuples(st.sampled_from([0.004, 0.01, 0.02]), st.sampled_from([1.0, 2.5]), st.integers(1, 9)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", KINDS)
@given(pairs=_PAIRS, data=st.data())
@settings(max_examples=5)
def test_order_and_grouping_are_irrelevant(name, pairs, data):
    kind = KINDS[name]
    steps = [(kind.step(q, stddev), 10 * n) for q, stddev, n in pairs] + [
        (GaussianSumEvent(1.0, 40.0), 2)
    ]
    apart = [(event, 1) for event, _ in steps] + [(event, n - 1) for event, n in steps]
    shuffled = data.draw(st.permutations(apart))
    assert epsilon_of(kind.make, *steps) == epsilon_of(kind.make, *shuffled) > 0


def test_ledgers_composed_are_the_ledger_of_both(kind):
    first, second, both = PrivacyLedger(), PrivacyLedger(), PrivacyLedger()
    # An adaptive clip: the bound and the noise move together, and a second group is counted.
    for step in range(6):
        clip = 1.5**step
        groups = ComposedEvent((GaussianSumEvent(clip, 3.0 * clip), GaussianSumEvent(1.0, 9.0)))
        event = SampledEvent(PoissonSampling(0.02), groups) if kind.sampled else groups
        for ledger in (first if step < 3 else second, both):
            ledger.append(event, 20)
    one_by_one = second.replay(first.replay(kind.make()))
    whole = both.replay(kind.make()).get_epsilon(DELTA)
    assert one_by_one.get_epsilon(DELTA) == whole
    # z^-2 = 3^-2 + 9^-2 at every step.
    z = (3.0**-2 + 9.0**-2) ** -0.5
    step = GaussianSumEvent(1.0, z)
    step = SampledEvent(PoissonSampling(0.02), step) if kind.sampled else step
    assert whole == pytest.approx(epsilon_of(kind.make, (step, 120)), rel=1e-9)


@pytest.mark.parametrize("count", [100, 5000])
def test_get_delta_inverts_get_epsilon(kind, count):
    accountant = kind.make().compose(kind.step(), count)
    epsilon = accountant.get_epsilon(DELTA)
    assert epsilon > 0
    assert accountant.get_delta(epsilon) == pytest.approx(DELTA, rel=1e-6)
    assert accountant.get_delta(epsilon * 1.1) < DELTA < accountant.get_delta(epsilon * 0.9)


def test_much_noise_and_large_delta_is_zero_epsilon(kind):
    accountant = kind.make().compose(GaussianSumEvent(1.0, 1e6))
    if kind.reaches_zero:
        assert accountant.get_epsilon(1e-3) == 0
        assert 0 <= accountant.get_delta(0.0) < 1e-3
    else:
        # The tail bound of 32 moments: log(1 / delta) / 32.
        assert accountant.get_epsilon(1e-3) == pytest.approx(math.log(1e3) / 32, rel=1e-6)


@pytest.mark.parametrize("stddev", [1e-160, 1e-3, 1e-2, 1e10, 1e160])
@pytest.mark.parametrize("q", [1.0, 1e-3])
def test_extreme_noise_has_an_answer(kind, stddev, q):
    step = SampledEvent(PoissonSampling(q if kind.sampled else 1.0), GaussianSumEvent(1.0, stddev))
    epsilon = epsilon_of(kind.make, (step, 5))
    if stddev > 1:
        assert epsilon == (0 if kind.reaches_zero else pytest.approx(math.log(1e5) / 32))
    elif stddev < 1e-150:
        assert epsilon == math.inf
    else:
        # Five unsampled losses have mean 5 / (2 z^2) and exceed it half the time. With q = 1e-3 one
        # loss of mean 1 / (2 z^2), less log(1 / q), is among the five with probability 5e-3, far
        # above delta.
        assert epsilon > (0.49 if q < 1 and kind.sampled else 2.5) / stddev**2


@pytest.mark.parametrize(
    "event",
    [LaplaceSumEvent(1.0, 20.0), ExponentialMechanismEvent(0.05), PureEpsilonEvent(0.05)],
    ids=["laplace", "exponential", "pure"],
)
def test_pure_mechanisms_are_priced_and_compose(make, event):
    # Of 10 steps of epsilon 0.05 each nothing is dearer than 10 * 0.05 = 0.5; but neither the tail
    # bound of moments nor Gaussian privacy knows that epsilon is pure.
    one, ten = epsilon_of(make, (event, 1)), epsilon_of(make, (event, 10))
    assert 0 < one <= ten
    if make in (RDPAccountant, PLDAccountant, PRVAccountant, BasicComposition, StrongComposition):
        assert one <= 0.05 * (1 + 1e-6)
        assert ten <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("delta", "error"),
    [(1, ValueError), (-1e-5, ValueError), (1.5, ValueError)]
    + [(math.nan, ValueError), (math.inf, ValueError), ("1e-5", TypeError), (None, TypeError)],
)
def test_target_delta_is_checked(make, delta, error):
    with pytest.raises(error, match="target_delta"):
        make().compose(GAUSSIAN).get_epsilon(delta)


@pytest.mark.parametrize(
    ("epsilon", "error"),
    [(-1, ValueError), (math.nan, ValueError), ("1", TypeError)],
)
def test_target_epsilon_is_checked(make, epsilon, error):
    with pytest.raises(error, match="target_epsilon"):
        make().compose(GAUSSIAN).get_delta(epsilon)


@pytest.mark.parametrize(
    ("count", "error"),
    [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), ("1", TypeError)],
)
def test_count_is_checked(make, count, error):
    accountant = make()
    with pytest.raises(error, match="count"):
        accountant.compose(GAUSSIAN, count)
    assert accountant.get_epsilon(DELTA) == 0


def test_event_type_is_checked(make):
    for call in (make().compose, make().supports):
        with pytest.raises(TypeError, match="event must be an Event"):
            call("GaussianSumEvent")


def test_delta_of_an_infinite_epsilon(make):
    # What is left is what no epsilon covers: nothing where there is noise.
    assert make().compose(GAUSSIAN).get_delta(math.inf) == 0
    assert make().get_delta(math.inf) == 0
    assert make().compose(NonPrivateEvent()).get_delta(math.inf) == 1


def test_epsilon_at_delta_zero(make):
    # Of pure mechanisms the sum; a Gaussian has none.
    pure = make().compose(PureEpsilonEvent(0.25), 3).compose(LaplaceSumEvent(1.0, 4.0))
    assert pure.get_epsilon(0) == pytest.approx(1.0)
    assert make().compose(GAUSSIAN).get_epsilon(0) == math.inf
    assert make().get_epsilon(0) == 0


def test_pure_mechanisms_cost_no_more_than_the_sum(make):
    accountant = make().compose(PureEpsilonEvent(0.01)).compose(LaplaceSumEvent(1.0, 100.0))
    deltas = [0.0, 1e-300, 1e-200, 1e-12, 1e-5, 0.1]
    found = [accountant.get_epsilon(delta) for delta in deltas]
    assert found == sorted(found, reverse=True) and found[0] == pytest.approx(0.02)
    assert accountant.get_delta(0.02 * (1 + 1e-9)) == 0


@pytest.mark.parametrize("make", [PRVAccountant, RDPAccountant])
def test_groups_add_up_at_delta_zero_too(make):
    accountant = make(group_size=3).compose(PureEpsilonEvent(0.5), 2)
    for delta in (0.0, 1e-300, 1e-279):
        assert accountant.get_epsilon(delta) == pytest.approx(3.0)
    assert accountant.get_delta(2.9) > 0 == accountant.get_delta(3.0 * (1 + 1e-9))


def test_copies_go_on_apart(make):
    accountant = make().compose(GAUSSIAN, 3).compose(LaplaceSumEvent(1.0, 4.0))
    epsilon = accountant.get_epsilon(1e-5)
    for copied in (pickle.loads(pickle.dumps(accountant)), copy.deepcopy(accountant)):
        assert copied.get_epsilon(1e-5) == epsilon
        assert copied.compose(GAUSSIAN).get_epsilon(1e-5) > epsilon
        assert accountant.get_epsilon(1e-5) == epsilon


def test_counts_that_are_refused_leave_everything_as_it_was(make):
    samples = MinSeparationSampling(0.1, 4, 40)

    def step(position, relation=ZERO):
        release = CorrelatedGaussianSumEvent(1.0, 4.0, (1.0, 0.5), (1.0,), 40, 1, position, 7)
        return SampledEvent(samples, release, relation)

    accountant = make()
    with pytest.raises(UnsupportedEventError, match="taken 2 times"):
        accountant.compose(step(0, REPLACE), 2)
    assert accountant.neighboring_relation is None
    accountant.compose(step(0))
    before = accountant.get_epsilon(1e-5)
    with pytest.raises(UnsupportedEventError, match="taken 2 times"):
        accountant.compose(step(0))
    assert accountant.compose(step(1)).get_epsilon(1e-5) == before


def test_a_pass_of_separated_samples_costs_at_most_the_steps_of_a_unit(make):
    # A unit is in at most ceil(n / b) = 10 of the 95 steps of a pass.
    release = GaussianSumEvent(1.0, 8.0)
    most = make().compose(SampledEvent(FullBatchSampling(), release, ZERO), 20).get_epsilon(1e-4)
    accountant = make()
    for index in range(2):
        samples = MinSeparationSampling(0.1, 10, 95, None, index)
        accountant.compose(SampledEvent(samples, release, ZERO), 95)
    assert 0 < accountant.get_epsilon(1e-4) <= most * (1 + 1e-9)


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize(("steps", "separation"), [(95, 10), (20, 20), (7, 3)])
def test_a_pass_of_separated_samples_costs_no_less_where_nothing_amplifies_it(
    make, relation, steps, separation
):
    release, accountant = GaussianSumEvent(1.0, 8.0), make()
    participations = -(-steps // separation)
    samples = MinSeparationSampling(0.1, separation, steps, None, 0)
    accountant.compose(SampledEvent(samples, release, relation), steps)
    alone = make().compose(SampledEvent(FullBatchSampling(), release, relation), participations)
    assert accountant.get_epsilon(1e-4) >= alone.get_epsilon(1e-4) * (1 - 1e-9) > 0


def test_delta_of_a_release_goes_into_delta(make):
    # Alone at its own delta it costs its own epsilon, and at a smaller one there is none.
    alone = make().compose(EpsilonDeltaEvent(0.5, 1e-6))
    assert alone.get_epsilon(1e-6) == 0.5
    assert alone.get_epsilon(0.999e-6) == math.inf
    assert alone.get_delta(math.inf) == 1e-6
    # Without an epsilon of its own it takes its delta from that of what it is beside.
    threshold = make().compose(GAUSSIAN).compose(EpsilonDeltaEvent(0.0, 1e-6), 3)
    assert threshold.get_epsilon(4e-6) == pytest.approx(
        make().compose(GAUSSIAN).get_epsilon(1e-6), rel=1e-5
    )
    assert make().compose(EpsilonDeltaEvent(0.0, 1e-6)).get_epsilon(1e-6) == 0
    # 1 - (1 - d)^n, not n d.
    many = make().compose(EpsilonDeltaEvent(0.0, 0.5), 3)
    assert many.get_delta(1.0) == pytest.approx(0.875)
    # A replacement: (2 epsilon, (1 + e^epsilon) delta).
    replaced = SampledEvent(
        FullBatchSampling(), EpsilonDeltaEvent(0.5, 1e-6), NeighboringRelation.REPLACE_ONE
    )
    both = make().compose(replaced)
    assert both.get_delta(math.inf) == pytest.approx((1 + math.exp(0.5)) * 1e-6)
    sampled = SampledEvent(PoissonSampling(0.5), replaced.event, REPLACE)
    assert make().compose(sampled).get_delta(math.inf) == both.get_delta(math.inf)
    pure = make().compose(PureEpsilonEvent(1.0)).get_epsilon(1e-5)
    assert both.get_epsilon(1e-5) == pytest.approx(pure, rel=0.2)


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0, 2.0])
def test_delta_of_a_release_is_that_of_its_dominating_pair(target):
    # Three outputs: told apart with probability d, else randomized response of epsilon e.
    e, d, n = 0.7, 0.01, 2
    truth, other = math.exp(e) / (1 + math.exp(e)), 1 / (1 + math.exp(e))
    p, q = [d, (1 - d) * truth, (1 - d) * other], [0.0, (1 - d) * other, (1 - d) * truth]
    p, q = np.multiply.outer(p, p).ravel(), np.multiply.outer(q, q).ravel()
    exact = np.sum(np.maximum(p - math.exp(target) * q, 0.0))
    found = PRVAccountant().compose(EpsilonDeltaEvent(e, d), n).get_delta(target)
    assert exact <= found <= exact * (1 + 1e-2)


def test_counts_beyond_those_of_ledgers_are_refused(make):
    accountant = make()
    for count in (2**63, 10**5000):
        with pytest.raises(ValueError, match="count must be at most 2.63 - 1"):
            accountant.compose(GAUSSIAN, count)
    assert accountant.compose(GAUSSIAN, 2**63 - 1).get_epsilon(DELTA) > 1e18


def test_repr_says_how_it_was_made(make):
    accountant = make()
    assert repr(accountant).startswith(type(accountant).__name__ + "(")
    assert repr(RDPAccountant([2, 4], group_size=3)) == (
        "RDPAccountant(orders=[2.0, 4.0], group_size=3)"
    )


def test_events_of_dp_accounting_are_taken(kind):
    step = dp_accounting.GaussianDpEvent(2.0)
    if kind.sampled:
        step = dp_accounting.PoissonSampledDpEvent(0.01, step)
    nobody = dp_accounting.PoissonSampledDpEvent(0.0, dp_accounting.GaussianDpEvent(1e-9))
    both = dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(step, 20), nobody])
    ours = GaussianSumEvent(1.0, 2.0)
    if kind.sampled:
        ours = SampledEvent(PoissonSampling(0.01), ours, ADD)
    assert kind.make().supports(both)
    accountant = kind.make().compose(both, 5)
    assert accountant.get_epsilon(DELTA) == epsilon_of(kind.make, (ours, 100))
    unknown = dp_accounting.ComposedDpEvent([step, dp_accounting.ZCDpEvent(1.0)])
    assert not accountant.supports(unknown)
    with pytest.raises(UnsupportedEventError, match="ZCDpEvent has no counterpart"):
        accountant.compose(unknown)
    assert accountant.get_epsilon(DELTA) == epsilon_of(kind.make, (ours, 100))


@pytest.mark.parametrize("name", ["rdp", "prv"])
def test_failures_weigh_as_much_as_at_the_epsilon_that_is_returned(name):
    """What is left of delta, once both sides have failed, is enough for that epsilon."""
    sampling = TruncatedPoissonSampling(0.1, 100, 24)
    failure = 10 * stats.binom.sf(24, 100, 0.1)
    found = make_accountant(name, REPLACE)
    found.compose(SampledEvent(sampling, GaussianSumEvent(1.0, 8.0), REPLACE), 10)
    plain = make_accountant(name, REPLACE)
    plain.compose(SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, 8.0), REPLACE), 10)
    epsilon = found.get_epsilon(1e-3)
    left = 1e-3 - (1 + math.exp(epsilon)) * failure
    assert 0 < left < 1e-3 - 2 * failure
    assert plain.get_epsilon(1e-3) < plain.get_epsilon(left) <= epsilon * (1 + 1e-9)
