"""tfdp.accounting.normal_form: what every sampling policy and relation makes of every release."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.accounting.mechanisms import (
    BoundedRange,
    FixedSizeGaussian,
    NoPrivacy,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    amplified_epsilon,
)
from tfdp.accounting.normal_form import (
    collapse,
    collapse_all,
    effective_noise_multiplier,
    normal_form,
)
from tfdp.events import (
    ComposedEvent,
    EpsilonDeltaEvent,
    Event,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    IntegerGaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    PureEpsilonEvent,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    RunEvent,
    SampledEvent,
    Sampling,
    SelectedRunEvent,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnknownSampling,
    UnsupportedEventError,
)

ADD, REPLACE, ZERO = NeighboringRelation


# 25 of 100: four steps a pass. Seven steps have begun two passes.
SHUFFLED = ShuffledSampling(batch_size=25, population_size=100)


POISSON, FIXED = PoissonSampling(0.1), FixedSizeSampling(10, 100)


def _mechanisms(sampling, release, relation):
    return list(normal_form(SampledEvent(sampling, release, relation)).mechanisms)


def _amplified(epsilon, q):
    return PureEpsilon(amplified_epsilon(epsilon, q))


@pytest.mark.parametrize(
    ("sampling", "relation", "mechanisms"),
    [
        (POISSON, ADD, [SampledLaplace(0.1, 1.5)]),
        (POISSON, REPLACE, [RemoveThenAdd(SampledLaplace(0.1, 1.5))]),
        (FullBatchSampling(), REPLACE, [SampledLaplace(1, 0.75)]),
        (FIXED, ADD, [SampledLaplace(0.1, 0.75)]),
        (FIXED, REPLACE, [_amplified(1 / 0.75, 0.1)]),
        (FixedSizeSampling(60, 100), REPLACE, [SampledLaplace(1, 0.75)]),
        (FIXED, ZERO, [SampledLaplace(1, 1.5)]),
        (SHUFFLED, ADD, [SampledLaplace(1, 0.75), SampledLaplace(1, 1.5)]),
        (UnknownSampling(), ADD, [SampledLaplace(1, 0.75)]),
    ],
)
def test_laplace_sums(sampling, relation, mechanisms):
    assert _mechanisms(sampling, LaplaceSumEvent(2.0, 3.0), relation) == mechanisms


@pytest.mark.parametrize(
    ("release", "kind"),
    [(ExponentialMechanismEvent(0.5), BoundedRange), (PureEpsilonEvent(0.5), PureEpsilon)],
)
def test_releases_with_an_epsilon(release, kind):
    expected = {
        (POISSON, ADD): [_amplified(0.5, 0.1)],
        (POISSON, ZERO): [_amplified(0.5, 0.1)],
        (POISSON, REPLACE): [PureEpsilon(2 * amplified_epsilon(0.5, 0.1))],
        (PoissonSampling(0.9), ADD): [kind(0.5)],
        (PoissonSampling(0.9), REPLACE): [kind(1.0)],
        (FullBatchSampling(), ADD): [kind(0.5)],
        (FullBatchSampling(), REPLACE): [kind(1.0)],
        (FIXED, ADD): [_amplified(1.0, 0.1)],
        (FIXED, REPLACE): [_amplified(1.0, 0.1)],
        (FIXED, ZERO): [kind(0.5)],
        (SHUFFLED, ADD): [kind(1.0), kind(0.5)],
        (UnknownSampling(), REPLACE): [kind(1.0)],
    }
    for (sampling, relation), mechanisms in expected.items():
        assert _mechanisms(sampling, release, relation) == mechanisms


def test_reports_of_a_pass_count_once():
    event = SampledEvent(SHUFFLED, RandomizedResponseEvent(0.4, 3), REPLACE)
    assert collapse(event, 7) == [(RandomizedResponse(0.4, 3, False), 2)]


def test_random_reports_cost_nothing_and_true_ones_everything():
    full = FullBatchSampling()
    assert _mechanisms(full, RandomizedResponseEvent(1.0, 3), ZERO) == []
    assert _mechanisms(full, RandomizedResponseEvent(0.0, 3), ZERO) == [NoPrivacy()]


def test_bare_event_is_a_full_batch():
    assert collapse(GaussianSumEvent(2.0, 3.0), 7) == [(SampledGaussian(1.0, 1.5), 7)]
    assert collapse(LaplaceSumEvent(2.0, 3.0), 7) == [(SampledLaplace(1.0, 1.5), 7)]


def test_groups_on_one_sample_collapse_to_one_gaussian():
    # (S / sigma)^2 are 1/4, 1/4 and 1/2: together 1.
    groups = (GaussianSumEvent(1.0, 2.0), GaussianSumEvent(3.0, 6.0))
    event = ComposedEvent((ComposedEvent(groups), GaussianSumEvent(1.0, math.sqrt(2))))
    assert effective_noise_multiplier(event) == pytest.approx(1.0, rel=1e-15)


def test_releases_about_everything_are_priced_one_by_one():
    event = ComposedEvent(
        (GaussianSumEvent(1.0, 2.0), LaplaceSumEvent(1.0, 4.0), ExponentialMechanismEvent(0.5))
    )
    assert set(normal_form(event).mechanisms) == {
        SampledGaussian(1.0, 2.0),
        SampledLaplace(1.0, 4.0),
        BoundedRange(0.5),
    }


def test_laplace_sums_about_one_sample_are_one():
    # 1/4 and 1/12: together 1/3.
    event = ComposedEvent((LaplaceSumEvent(1.0, 4.0), LaplaceSumEvent(1.0, 12.0)))
    (mechanism,) = _mechanisms(POISSON, event, ADD)
    assert mechanism.sampling_probability == 0.1
    assert mechanism.noise_multiplier == pytest.approx(3.0, rel=1e-15)


def test_epsilons_about_one_sample_add_up():
    event = ComposedEvent(
        (LaplaceSumEvent(1.0, 4.0), ExponentialMechanismEvent(0.5), PureEpsilonEvent(0.25))
    )
    (mechanism,) = _mechanisms(POISSON, event, ADD)
    assert mechanism.epsilon == pytest.approx(amplified_epsilon(1.0, 0.1), rel=1e-15)


@pytest.mark.parametrize(
    "other", [LaplaceSumEvent(1.0, 1.0), ExponentialMechanismEvent(1.0), PureEpsilonEvent(1.0)]
)
def test_gaussians_beside_others_about_one_sample_are_refused(other):
    event = ComposedEvent((GaussianSumEvent(1.0, 1.0), other))
    for sampling, relation in ((POISSON, ADD), (POISSON, REPLACE), (FIXED, ADD), (FIXED, REPLACE)):
        with pytest.raises(UnsupportedEventError, match="SampledGaussian.* about one sample"):
            _mechanisms(sampling, event, relation)
    assert len(_mechanisms(FullBatchSampling(), event, REPLACE)) == 2


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_one_group_keeps_its_multiplier_exactly(bound, stddev):
    event = SampledEvent(POISSON, ComposedEvent((GaussianSumEvent(bound, stddev),)))
    assert effective_noise_multiplier(event) == stddev / bound
    assert normal_form(event).mechanisms == (SampledGaussian(0.1, stddev / bound),)


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
    for sampled in (event, SampledEvent(POISSON, event)):
        assert effective_noise_multiplier(sampled) == 0
        assert normal_form(sampled).mechanisms == (NoPrivacy(),)


@pytest.mark.parametrize(
    "event",
    [
        LaplaceSumEvent(1.0, 0.0),
        LaplaceSumEvent(1.0, 2.0, seeded=True),
        LaplaceSumEvent(1e300, 1e-300),
        ComposedEvent((LaplaceSumEvent(1.0, 1.0), NonPrivateEvent())),
        ComposedEvent((PureEpsilonEvent(1.0), GaussianSumEvent(1.0, 0.0))),
    ],
)
def test_no_noise_beside_other_releases_is_no_privacy(event):
    for sampled in (event, SampledEvent(POISSON, event), SampledEvent(SHUFFLED, event, REPLACE)):
        assert normal_form(sampled).mechanisms == (NoPrivacy(),)


def test_extreme_multipliers_stay_finite():
    event = ComposedEvent((GaussianSumEvent(1e-300, 1e300), GaussianSumEvent(5e-324, 1e300)))
    assert 1e14 < effective_noise_multiplier(event) <= 1e15
    mixed = ComposedEvent((GaussianSumEvent(1e-300, 1e300), GaussianSumEvent(1.0, 1e-9)))
    assert effective_noise_multiplier(mixed) == 1e-9
    assert normal_form(LaplaceSumEvent(1e-300, 1e300)).mechanisms == (SampledLaplace(1.0, 1e15),)


@pytest.mark.parametrize(
    "releases",
    [
        (GaussianSumEvent(1.0, 1.5e-10), IntegerGaussianSumEvent(1.0, 3.0)),
        (GaussianSumEvent(1.0, 2.0), IntegerGaussianSumEvent(1.0, 1.5e-10)),
        (PureEpsilonEvent(6e9), IntegerGaussianSumEvent(1.0, 3.0)),
    ],
)
@pytest.mark.parametrize("sampling", [POISSON, RandomAllocationSampling(5)])
def test_so_little_noise_that_a_replacement_has_none_is_no_privacy(sampling, releases):
    # Twice as far is beyond what is priced, of one of two that are not amplified.
    assert _mechanisms(sampling, ComposedEvent(releases), REPLACE) == [NoPrivacy()]


@pytest.mark.parametrize(
    ("event", "charged"),
    [
        (GaussianSumEvent(1.0, 1e-11), NoPrivacy()),
        (LaplaceSumEvent(1.0, 1e-11), NoPrivacy()),
        (PureEpsilonEvent(1e11), NoPrivacy()),
        (PureEpsilonEvent(1e-300), PureEpsilon(1e-30)),
        (ExponentialMechanismEvent(1e-300), BoundedRange(1e-30)),
        (
            SampledEvent(PoissonSampling(1e-300), GaussianSumEvent(1.0, 1e300), ADD),
            SampledGaussian(1e-30, 1e15),
        ),
        (
            SampledEvent(PoissonSampling(1e-300), LaplaceSumEvent(1.0, 1e300), REPLACE),
            RemoveThenAdd(SampledLaplace(1e-30, 1e15)),
        ),
        (
            SampledEvent(FixedSizeSampling(1, 2), GaussianSumEvent(1.0, 1e300), REPLACE),
            FixedSizeGaussian(1, 2, 5e14),
        ),
        (
            SampledEvent(FullBatchSampling(), RandomizedResponseEvent(1e-31, 2), ZERO),
            NoPrivacy(),
        ),
    ],
)
def test_beyond_the_ranges_more_is_charged(event, charged):
    assert normal_form(event).mechanisms == (charged,)


def test_nothing_released_costs_nothing():
    assert collapse(SampledEvent(PoissonSampling(0.5), ComposedEvent(())), 3) == []
    assert effective_noise_multiplier(ComposedEvent(())) == math.inf


@pytest.mark.parametrize("event", [LaplaceSumEvent(1.0, 1.0), PureEpsilonEvent(1.0)])
def test_other_releases_have_no_noise_multiplier(event):
    with pytest.raises(UnsupportedEventError, match=type(event).__name__):
        effective_noise_multiplier(SampledEvent(POISSON, event))


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


def test_all_steps_of_a_pass_are_counted_together():
    """6 + 4 steps in passes of 5 are two, and a unit may have been in the dear one of both."""
    shuffled = ShuffledSampling(20, 100)
    kinds = [
        SampledEvent(shuffled, event, ZERO)
        for event in (GaussianSumEvent(1.0, 2.0), PureEpsilonEvent(1.0))
    ]
    found = dict(collapse_all([(kinds[0], 6), (kinds[1], 4)]))
    assert list(found.values()) == [2, 2]
    assert dict(collapse_all([(kinds[0], 6), (kinds[1], 1)]))[PureEpsilon(1.0)] == 1
    run = RunEvent(tuple(kinds), (6, 4))
    (best,) = normal_form(SelectedRunEvent((run,), 1.0, 0.1)).mechanisms
    assert dict(best.runs[0]) == found


@pytest.mark.parametrize("q", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("kept", [1, 3, 10])
def test_delta_of_a_release_on_a_truncated_sample_is_that_of_two_units(q, kept):
    # Told apart is a unit that comes, and beside it, where the sample is full, one that goes.
    released = ComposedEvent((GaussianSumEvent(1.0, 1.0), EpsilonDeltaEvent(0.0, 0.01)))
    event = SampledEvent(TruncatedPoissonSampling(q, kept, kept), released, ADD)
    others = [math.comb(kept, s) * q**s * (1 - q) ** (kept - s) for s in range(kept + 1)]
    full = others[kept] * kept / (kept + 1)
    told_apart = q * 0.01 * (sum(others[:kept]) + 2 * full)
    form = normal_form(event)
    assert told_apart <= form.lost_probability <= 0.02
    assert form.failure_probability == 0
    # By whom the sample itself counts as lost, it is not counted twice.
    assert form.otherwise.lost_probability == 0.01
