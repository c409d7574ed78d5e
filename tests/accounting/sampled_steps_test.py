"""What every accountant makes of how samples were drawn, and of the relation."""

import dataclasses
import math

import pytest

from tests.accounting.kinds import DELTA, KINDS, epsilon_of
from tfdp.accounting import (
    MomentsAccountant,
)
from tfdp.events import (
    ComposedEvent,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnknownSampling,
    UnsupportedEventError,
)

ADD, REPLACE, ZERO = NeighboringRelation


GAUSSIAN = GaussianSumEvent(1.0, 2.0)


def test_relations_have_zero_out_in_common(make):
    steps = [
        SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 200.0 * f), relation)
        for relation, f in ((ADD, 1), (REPLACE, 2), (ZERO, 1))
    ]
    mixed, alike = make(), make().compose(steps[2], 3)
    for step in reversed(steps):
        mixed.compose(step)
    assert mixed.neighboring_relation is ZERO
    assert mixed.get_epsilon(DELTA) == alike.get_epsilon(DELTA)


def test_what_has_no_amplification_refuses_samples_by_name(kind):
    steps = [
        SampledEvent(PoissonSampling(0.01), GAUSSIAN, relation) for relation in NeighboringRelation
    ]
    for step in steps:
        assert kind.make().supports(step) == kind.sampled
        if not kind.sampled:
            with pytest.raises(UnsupportedEventError, match="sampling_probability=0.01"):
                kind.make().compose(step)


def test_sampling_everything_equals_not_sampling(make):
    step = SampledEvent(PoissonSampling(1.0), GAUSSIAN)
    assert epsilon_of(make, (step, 10)) == epsilon_of(make, (GAUSSIAN, 10))


def test_groups_on_one_sample_are_one_gaussian(kind):
    # Each group has multiplier 4; four of them on one sample are one with multiplier 2.
    groups = ComposedEvent((GaussianSumEvent(0.5, 2.0),) * 4)
    one = GAUSSIAN
    if kind.sampled:
        groups, one = (SampledEvent(PoissonSampling(0.01), event) for event in (groups, one))
    assert epsilon_of(kind.make, (groups, 100)) == epsilon_of(kind.make, (one, 100))


@pytest.mark.parametrize(
    ("relation", "factor"), [(ADD, math.sqrt(5)), (REPLACE, 2.0), (ZERO, 1.0)], ids=str
)
def test_shuffled_pass_costs_one_gaussian(make, relation, factor):
    # 10 of 95: ten steps a pass, the last with five records. 21 steps have begun three passes.
    step = SampledEvent(ShuffledSampling(10, 95), GaussianSumEvent(1.0, 4.0), relation)
    expected = epsilon_of(make, (GaussianSumEvent(factor, 4.0), 3))
    accountant = make()
    for _ in range(21):
        accountant.compose(step)
    assert accountant.get_epsilon(DELTA) == pytest.approx(expected, rel=1e-12)
    assert accountant.neighboring_relation is relation


def test_a_begun_pass_without_noise_has_no_privacy(make):
    step = SampledEvent(ShuffledSampling(10, 95), GaussianSumEvent(1.0, 0.0), ZERO)
    assert epsilon_of(make, (step, 3)) == math.inf


def test_shuffled_passes_are_not_merged(make):
    # Ten steps a pass: five of one pass and five of another are two Gaussians.
    halves = [
        (SampledEvent(ShuffledSampling(10, 100, i), GaussianSumEvent(1.0, 4.0), ZERO), 5)
        for i in range(2)
    ]
    assert epsilon_of(make, *halves) == epsilon_of(make, (GaussianSumEvent(1.0, 4.0), 2))


def test_shuffled_is_never_priced_as_poisson(kind):
    shuffled = SampledEvent(ShuffledSampling(1, 100), GaussianSumEvent(1.0, 4.0))
    unsampled = epsilon_of(kind.make, (GaussianSumEvent(1.0, 4.0), 1))
    assert epsilon_of(kind.make, (shuffled, 100)) > 1.9 * unsampled


def test_unknown_sampling_grants_no_amplification(make):
    expected = epsilon_of(make, (GaussianSumEvent(2.0, 8.0), 3))
    step = SampledEvent(UnknownSampling(), GaussianSumEvent(1.0, 8.0))
    assert epsilon_of(make, (step, 3)) == expected


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name].sampled])
def test_truncation_adds_its_probability(name):
    kind = KINDS[name]
    whole = kind.step(q=0.01)
    epsilon = epsilon_of(kind.make, (whole, 100))

    def truncated(most):
        return dataclasses.replace(whole, sampling=TruncatedPoissonSampling(0.01, 1000, most))

    # 10 expected: more than 60 at once has probability 1e-27, more than 30 has 1e-7.
    found = epsilon_of(kind.make, (truncated(60), 100))
    if kind.make.computes_distributions:
        # It is part of the distribution, and of what a grid has to hold; never of delta.
        assert found == pytest.approx(epsilon, rel=2e-3)
        assert epsilon < epsilon_of(kind.make, (truncated(26), 100)) < epsilon * 1.01
        assert epsilon * 1.05 < epsilon_of(kind.make, (truncated(12), 100)) < math.inf
        return
    assert found == pytest.approx(epsilon, rel=1e-6)
    if kind.make is not MomentsAccountant:  # Its epsilon hardly moves with delta.
        assert epsilon_of(kind.make, (truncated(26), 100)) > epsilon * 1.001
    assert epsilon_of(kind.make, (truncated(12), 100)) == math.inf
