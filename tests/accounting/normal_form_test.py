"""tfdp.accounting.normal_form: q, f and n of every sampling policy and relation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.accounting.normal_form import SampledGaussian, collapse, effective_noise_multiplier
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
ROOT5 = math.sqrt(5)
# 25 of 100: four steps a pass. Seven steps have begun two passes.
SHUFFLED = ShuffledSampling(batch_size=25, population_size=100)


@pytest.mark.parametrize(
    ("sampling", "relation", "q", "factor", "count"),
    [
        (PoissonSampling(0.1), ADD, 0.1, 1, 7),
        (PoissonSampling(0.1), ZERO, 0.1, 1, 7),
        (PoissonSampling(1.0), ADD, 1, 1, 7),
        (PoissonSampling(1.0), REPLACE, 1, 2, 7),
        (FullBatchSampling(), ADD, 1, 1, 7),
        (FullBatchSampling(), REPLACE, 1, 2, 7),
        (FullBatchSampling(), ZERO, 1, 1, 7),
        (FixedSizeSampling(10, 100), ADD, 1, 2, 7),
        (FixedSizeSampling(10, 100), REPLACE, 1, 2, 7),
        (FixedSizeSampling(10, 100), ZERO, 1, 1, 7),
        (SHUFFLED, ADD, 1, ROOT5, 2),
        (SHUFFLED, REPLACE, 1, 2, 2),
        (SHUFFLED, ZERO, 1, 1, 2),
        (UnknownSampling(), ADD, 1, 2, 7),
        (UnknownSampling(), REPLACE, 1, 2, 7),
        (UnknownSampling(), ZERO, 1, 1, 7),
    ],
)
def test_sampling_and_relation_set_q_factor_and_count(sampling, relation, q, factor, count):
    event = SampledEvent(sampling, GaussianSumEvent(2.0, 3.0), relation)
    assert collapse(event, 7) == [(SampledGaussian(q, 1.5 / factor), count)]


def test_bare_event_is_a_full_batch():
    assert collapse(GaussianSumEvent(2.0, 3.0), 7) == [(SampledGaussian(1.0, 1.5), 7)]


def test_poisson_under_replace_one_is_refused():
    event = SampledEvent(PoissonSampling(0.1), GaussianSumEvent(2.0, 3.0), REPLACE)
    with pytest.raises(UnsupportedEventError, match="PoissonSampling.*sampling_probability=0.1"):
        collapse(event, 1)


@pytest.mark.parametrize("steps", range(1, 13))
def test_begun_pass_counts_as_whole(steps):
    event = SampledEvent(SHUFFLED, GaussianSumEvent(1.0, 1.0), ZERO)
    assert collapse(event, steps)[0][1] == (1 if steps <= 4 else 2 if steps <= 8 else 3)


def test_groups_on_one_sample_collapse_to_one_gaussian():
    # (S / sigma)^2 are 1/4, 1/4 and 1/2: together 1.
    groups = (GaussianSumEvent(1.0, 2.0), GaussianSumEvent(3.0, 6.0))
    event = ComposedEvent((ComposedEvent(groups), GaussianSumEvent(1.0, math.sqrt(2))))
    assert effective_noise_multiplier(event) == pytest.approx(1.0, rel=1e-15)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_one_group_keeps_its_multiplier_exactly(bound, stddev):
    event = SampledEvent(PoissonSampling(0.1), ComposedEvent((GaussianSumEvent(bound, stddev),)))
    assert effective_noise_multiplier(event) == stddev / bound


@pytest.mark.parametrize(
    "event",
    [
        GaussianSumEvent(1.0, 0.0),
        GaussianSumEvent(1.0, 2.0, seeded=True),
        NonPrivateEvent(),
        ComposedEvent((GaussianSumEvent(1.0, 2.0), GaussianSumEvent(1.0, 0.0))),
        ComposedEvent((GaussianSumEvent(1.0, 2.0), ComposedEvent((NonPrivateEvent(),)))),
        GaussianSumEvent(1e300, 1e-300),
    ],
)
def test_no_noise_anywhere_is_no_privacy(event):
    assert effective_noise_multiplier(event) == 0
    assert effective_noise_multiplier(SampledEvent(PoissonSampling(0.1), event)) == 0


def test_extreme_multipliers_stay_finite():
    event = ComposedEvent((GaussianSumEvent(1e-300, 1e300), GaussianSumEvent(5e-324, 1e300)))
    assert 1e149 < effective_noise_multiplier(event) <= 1e150
    mixed = ComposedEvent((GaussianSumEvent(1e-300, 1e300), GaussianSumEvent(1.0, 1e-140)))
    assert effective_noise_multiplier(mixed) == 1e-140


def test_nothing_released_costs_nothing():
    assert collapse(SampledEvent(PoissonSampling(0.5), ComposedEvent(())), 3) == []
    assert effective_noise_multiplier(ComposedEvent(())) == math.inf


class _OtherEvent(Event):
    pass


class _OtherSum(GaussianSumEvent):
    pass


class _OtherSampling(Sampling):
    pass


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (_OtherEvent(), "_OtherEvent"),
        (ComposedEvent((GaussianSumEvent(1.0, 1.0), _OtherEvent())), "_OtherEvent"),
        (SampledEvent(PoissonSampling(0.1), ComposedEvent((_OtherEvent(),))), "_OtherEvent"),
        (SampledEvent(_OtherSampling(), GaussianSumEvent(1.0, 1.0)), "_OtherSampling"),
        (_OtherSum(1.0, 1.0), "_OtherSum"),
        (ComposedEvent((NonPrivateEvent(), _OtherEvent())), "_OtherEvent"),
    ],
)
def test_unsupported_part_is_named(event, name):
    with pytest.raises(UnsupportedEventError, match=name):
        collapse(event, 1)
