"""What every accountant of tfdp promises, shown for each."""

import math

import numpy as np
import pytest

from tfdp.accounting import Accountant, PLDAccountant, RDPAccountant
from tfdp.ledger import (
    ComposedEvent,
    Event,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    SampledEvent,
    Sampling,
    ShuffledSampling,
    UnknownSampling,
    UnsupportedEventError,
)

ADD, REPLACE, ZERO = NeighboringRelation
DELTA = 1e-5
GAUSSIAN = GaussianSumEvent(1.0, 2.0)
STEP = SampledEvent(PoissonSampling(0.01), GAUSSIAN)

pytestmark = pytest.mark.parametrize("make", [RDPAccountant, PLDAccountant])


def _poisson(q=0.01, stddev=2.0, bound=1.0):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(bound, stddev))


def _epsilon(make, *pairs):
    accountant = make()
    for event, count in pairs:
        accountant.compose(event, count)
    return accountant.get_epsilon(DELTA)


class _OtherEvent(Event):
    pass


class _OtherSampling(Sampling):
    pass


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
    assert accountant.compose(STEP, 3).compose(STEP) is accountant


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (_OtherEvent(), "_OtherEvent"),
        (ComposedEvent((GAUSSIAN, _OtherEvent())), "_OtherEvent"),
        (SampledEvent(PoissonSampling(0.1), _OtherEvent()), "_OtherEvent"),
        (SampledEvent(_OtherSampling(), GAUSSIAN), "_OtherSampling"),
        (SampledEvent(PoissonSampling(0.1), GAUSSIAN, REPLACE), "PoissonSampling"),
        (SampledEvent(FullBatchSampling(), GAUSSIAN, REPLACE), "REPLACE_ONE"),
        (SampledEvent(FullBatchSampling(), GAUSSIAN, ZERO), "ZERO_OUT"),
        (SampledEvent(FullBatchSampling(), GAUSSIAN, privacy_unit="user"), "'user'"),
    ],
)
def test_unsupported_is_refused_by_name_and_leaves_the_accountant(make, event, name):
    accountant = make().compose(STEP, 100)
    before = accountant.get_epsilon(DELTA)
    assert not accountant.supports(event)
    with pytest.raises(UnsupportedEventError, match=name):
        accountant.compose(event, 3)
    assert accountant.get_epsilon(DELTA) == before
    assert accountant.neighboring_relation is ADD
    assert accountant.supports(STEP)


def test_refused_first_event_does_not_set_the_relation(make):
    accountant = make()
    with pytest.raises(UnsupportedEventError):
        accountant.compose(SampledEvent(PoissonSampling(0.1), GAUSSIAN, REPLACE))
    assert accountant.neighboring_relation is None
    assert accountant.supports(SampledEvent(FullBatchSampling(), GAUSSIAN, ZERO))


@pytest.mark.parametrize(
    "event",
    [
        NonPrivateEvent(),
        GaussianSumEvent(1.0, 0.0),
        GaussianSumEvent(1.0, 2.0, seeded=True),
        ComposedEvent((GAUSSIAN, NonPrivateEvent())),
        SampledEvent(PoissonSampling(1e-6), GaussianSumEvent(1.0, 2.0, seeded=True)),
        SampledEvent(ShuffledSampling(10, 100), NonPrivateEvent()),
    ],
)
def test_no_noise_is_infinite(make, event):
    accountant = make().compose(STEP, 10).compose(event)
    assert accountant.get_epsilon(DELTA) == math.inf
    assert accountant.get_delta(10.0) == 1


def test_monotone_in_steps_sampling_noise_and_bound(make):
    epsilons = [
        _epsilon(make, (_poisson(), 1000)),
        _epsilon(make, (_poisson(), 1001)),
        _epsilon(make, (_poisson(q=0.0102), 1001)),
        _epsilon(make, (_poisson(q=0.0102, stddev=1.95), 1001)),
        _epsilon(make, (_poisson(q=0.0102, stddev=1.95, bound=1.05), 1001)),
    ]
    assert np.all(np.diff(epsilons) > 0)
    assert epsilons[0] > 0


def test_epsilon_falls_with_delta(make):
    accountant = make().compose(STEP, 1000)
    assert accountant.get_epsilon(1e-6) > accountant.get_epsilon(1e-5) > 0


@pytest.mark.parametrize("sampled", [True, False])
def test_int_equals_float(make, sampled):
    ints, floats = GaussianSumEvent(2, 12), GaussianSumEvent(2.0, 12.0)
    if sampled:
        ints = SampledEvent(PoissonSampling(0.05), ints)
        floats = SampledEvent(PoissonSampling(0.05), floats)
    epsilon = _epsilon(make, (ints, 100))
    assert epsilon == _epsilon(make, (floats, 100)) == _epsilon(make, (ints, np.int64(100)))
    assert 0.1 < epsilon < 100


def test_sampling_everything_equals_not_sampling(make):
    assert _epsilon(make, (_poisson(q=1), 10)) == _epsilon(make, (GAUSSIAN, 10))


def test_k_fold_equals_k_times(make):
    at_once, one_by_one = make().compose(STEP, 60), make()
    for _ in range(60):
        one_by_one.compose(STEP)
    assert at_once.get_epsilon(DELTA) == one_by_one.get_epsilon(DELTA) > 0


def test_composing_goes_on_after_asking(make):
    accountant = make().compose(STEP, 500)
    first = accountant.get_epsilon(DELTA)
    accountant.compose(STEP, 500)
    assert accountant.get_epsilon(DELTA) == _epsilon(make, (STEP, 1000)) > first


def test_order_is_irrelevant(make):
    pairs = [(_poisson(0.01), 300), (_poisson(0.02), 200), (_poisson(1.0, 50.0), 4), (GAUSSIAN, 1)]
    assert _epsilon(make, *pairs) == _epsilon(make, *reversed(pairs))
    split = [(event, 1) for event, _ in pairs] + [(e, n - 1) for e, n in reversed(pairs) if n > 1]
    assert _epsilon(make, *pairs) == _epsilon(make, *split)


def test_groups_on_one_sample_are_one_gaussian(make):
    # Each group has multiplier 4; four of them on one sample are one with multiplier 2.
    groups = SampledEvent(PoissonSampling(0.01), ComposedEvent((GaussianSumEvent(0.5, 2.0),) * 4))
    assert _epsilon(make, (groups, 100)) == _epsilon(make, (STEP, 100))


@pytest.mark.parametrize(("relation", "factor"), [(ADD, math.sqrt(5)), (REPLACE, 2.0), (ZERO, 1.0)])
def test_shuffled_pass_costs_one_gaussian(make, relation, factor):
    # 10 of 95: ten steps a pass, the last with five records. 21 steps have begun three passes.
    step = SampledEvent(ShuffledSampling(10, 95), GaussianSumEvent(1.0, 4.0), relation)
    expected = _epsilon(make, (GaussianSumEvent(factor, 4.0), 3))
    accountant = make()
    for _ in range(21):
        accountant.compose(step)
    assert accountant.get_epsilon(DELTA) == pytest.approx(expected, rel=1e-12)
    assert accountant.neighboring_relation is relation


def test_shuffled_passes_are_not_merged(make):
    # Ten steps a pass: five of one pass and five of another are two Gaussians.
    halves = [
        (SampledEvent(ShuffledSampling(10, 100, i), GaussianSumEvent(1.0, 4.0), ZERO), 5)
        for i in range(2)
    ]
    assert _epsilon(make, *halves) == _epsilon(make, (GaussianSumEvent(1.0, 4.0), 2))


def test_shuffled_is_never_priced_as_poisson(make):
    shuffled = SampledEvent(ShuffledSampling(1, 100), GaussianSumEvent(1.0, 4.0))
    poisson = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 4.0))
    assert _epsilon(make, (shuffled, 100)) > 2 * _epsilon(make, (poisson, 100))


@pytest.mark.parametrize("sampling", [FixedSizeSampling(1, 10**6), UnknownSampling()])
def test_no_amplification_is_granted(make, sampling):
    expected = _epsilon(make, (GaussianSumEvent(2.0, 8.0), 3))
    assert _epsilon(make, (SampledEvent(sampling, GaussianSumEvent(1.0, 8.0)), 3)) == expected


@pytest.mark.parametrize("count", [100, 5000])
def test_get_delta_inverts_get_epsilon(make, count):
    accountant = make().compose(STEP, count)
    epsilon = accountant.get_epsilon(DELTA)
    assert epsilon > 0
    assert accountant.get_delta(epsilon) == pytest.approx(DELTA, rel=1e-6)
    assert accountant.get_delta(epsilon * 1.1) < DELTA < accountant.get_delta(epsilon * 0.9)


def test_much_noise_and_large_delta_is_zero_epsilon(make):
    accountant = make().compose(GaussianSumEvent(1.0, 1e6))
    assert accountant.get_epsilon(1e-3) == 0
    assert 0 <= accountant.get_delta(0.0) < 1e-3


@pytest.mark.parametrize("stddev", [1e-160, 1e-3, 1e-2, 1e10, 1e160])
@pytest.mark.parametrize("q", [1.0, 1e-3])
def test_extreme_noise_has_an_answer(make, stddev, q):
    epsilon = _epsilon(make, (_poisson(q, stddev), 5))
    if stddev > 1:
        assert epsilon == 0
    elif stddev < 1e-150:
        assert epsilon == math.inf
    else:
        # Five unsampled losses have mean 5 / (2 z^2) and exceed it half the time. With q = 1e-3 one
        # loss of mean 1 / (2 z^2), less log(1 / q), is among the five with probability 5e-3, far
        # above delta.
        assert epsilon > (2.5 if q == 1 else 0.49) / stddev**2


@pytest.mark.parametrize(
    ("delta", "error"),
    [(0, ValueError), (1, ValueError), (-1e-5, ValueError), (1.5, ValueError)]
    + [(math.nan, ValueError), (math.inf, ValueError), ("1e-5", TypeError), (None, TypeError)],
)
def test_target_delta_is_checked(make, delta, error):
    with pytest.raises(error, match="target_delta"):
        make().compose(STEP).get_epsilon(delta)


@pytest.mark.parametrize(
    ("epsilon", "error"),
    [(-1, ValueError), (math.nan, ValueError), (math.inf, ValueError), ("1", TypeError)],
)
def test_target_epsilon_is_checked(make, epsilon, error):
    with pytest.raises(error, match="target_epsilon"):
        make().compose(STEP).get_delta(epsilon)


@pytest.mark.parametrize(
    ("count", "error"),
    [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), ("1", TypeError)],
)
def test_count_is_checked(make, count, error):
    accountant = make()
    with pytest.raises(error, match="count"):
        accountant.compose(STEP, count)
    assert accountant.get_epsilon(DELTA) == 0


def test_event_type_is_checked(make):
    for call in (make().compose, make().supports):
        with pytest.raises(TypeError, match="event must be an Event"):
            call("GaussianSumEvent")
