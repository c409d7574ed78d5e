"""tfdp.events.step: what may stand inside what, and what a larger sensitivity makes of it."""

import pytest

from tfdp.events import (
    ComposedEvent,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    GaussianSumEvent,
    LaplaceSumEvent,
    NonPrivateEvent,
    ParallelComposition,
    PoissonSampling,
    PureEpsilonEvent,
    RandomizedResponseEvent,
    SampledEvent,
    UnsupportedEventError,
    scale_sensitivity,
)
from tfdp.events.step import releases

SUM = GaussianSumEvent(1.0, 2.0)
STEP = SampledEvent(PoissonSampling(0.5), SUM)


def test_a_sample_holds_releases_and_no_sample():
    with pytest.raises(TypeError, match="A sample of a sample is not supported"):
        SampledEvent(PoissonSampling(0.5), STEP)
    with pytest.raises(TypeError, match="it cannot hold a SampledEvent"):
        ComposedEvent((SUM, STEP))
    with pytest.raises(TypeError, match="events must be a Event"):
        ComposedEvent((SUM, "sum"))
    assert ComposedEvent([SUM]).events == (SUM,)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("sampling", 0.5, TypeError),
        ("event", PoissonSampling(0.5), TypeError),
        ("neighboring_relation", "zero_out", TypeError),
        ("privacy_unit", "person", ValueError),
    ],
)
def test_every_field_of_a_step_is_checked(field, value, error):
    fields = {"sampling": PoissonSampling(0.5), "event": SUM}
    with pytest.raises(error, match=f"{field} must be"):
        SampledEvent(**{**fields, field: value})


def test_bounds_are_scaled_and_noise_is_not():
    parts = (SUM, LaplaceSumEvent(1.0, 2.0), DiscreteGaussianSumEvent(1.0, 2.0, 0.5, 3))
    scaled = scale_sensitivity(ComposedEvent((*parts, NonPrivateEvent())), 2)
    assert scaled == ComposedEvent(
        (
            GaussianSumEvent(2.0, 2.0),
            LaplaceSumEvent(2.0, 2.0),
            DiscreteGaussianSumEvent(2.0, 2.0, 0.5, 3),
            NonPrivateEvent(),
        )
    )


@pytest.mark.parametrize(
    "event",
    [
        PureEpsilonEvent(1.0),
        EpsilonDeltaEvent(1.0, 0.1),
        ExponentialMechanismEvent(1.0),
        RandomizedResponseEvent(0.5, 2),
    ],
)
def test_what_has_no_bound_cannot_be_scaled_and_is_named(event):
    with pytest.raises(UnsupportedEventError, match=f"{type(event).__name__} cannot be scaled"):
        scale_sensitivity(ComposedEvent((SUM, event)), 2)


def test_a_group_costs_its_size_times_an_epsilon_and_a_bound():
    step = ComposedEvent((SUM, PureEpsilonEvent(1.0), ExponentialMechanismEvent(0.5)))
    assert step.of_group(3) == ComposedEvent(
        (SUM.scaled(3.0), PureEpsilonEvent(3.0), ExponentialMechanismEvent(1.5))
    )
    with pytest.raises(UnsupportedEventError, match="EpsilonDeltaEvent cannot be scaled"):
        EpsilonDeltaEvent(1.0, 0.1).of_group(2)


@pytest.mark.parametrize(
    ("event", "of_nine"),
    [
        (SUM, GaussianSumEvent(3.0, 2.0)),
        (LaplaceSumEvent(1.0, 2.0), LaplaceSumEvent(9.0, 2.0)),
        (NonPrivateEvent(), NonPrivateEvent()),
        (ComposedEvent((SUM, NonPrivateEvent())), None),
    ],
)
def test_nine_releases_about_one_sample_are_one_of_a_larger_sum(event, of_nine):
    expected = ComposedEvent((GaussianSumEvent(3.0, 2.0), NonPrivateEvent()))
    assert event.repeated(9) == (of_nine or expected)


@pytest.mark.parametrize(
    "event",
    [
        PureEpsilonEvent(1.0),
        RandomizedResponseEvent(0.5, 2),
        # Each of them has a probability of its own to differ from Gaussian noise.
        DiscreteGaussianSumEvent(1.0, 2.0, 0.5, 3),
        STEP,
    ],
)
def test_what_is_not_known_as_one_release_is_named(event):
    assert event.repeated(1) is event
    with pytest.raises(UnsupportedEventError, match=f"2 releases of a {type(event).__name__}"):
        event.repeated(2)


def test_releases_of_a_step_are_in_order():
    inner = ComposedEvent((NonPrivateEvent(), ComposedEvent(()), PureEpsilonEvent(1.0)))
    step = SampledEvent(PoissonSampling(0.5), ComposedEvent((SUM, inner, SUM)))
    assert releases(step) == [SUM, NonPrivateEvent(), PureEpsilonEvent(1.0), SUM]
    assert releases(SUM) == [SUM]


def test_parts_of_disjoint_data_are_one_release_unless_they_are_asked_for():
    parts = ParallelComposition((SUM, SUM, ComposedEvent((PureEpsilonEvent(1.0),))))
    assert parts.events == (SUM, ComposedEvent((PureEpsilonEvent(1.0),)))
    step = ComposedEvent((parts, SUM))
    assert releases(step) == [parts, SUM]
    assert releases(step, in_parts=True) == [SUM, PureEpsilonEvent(1.0), SUM]
    assert parts.line().startswith("about each of disjoint parts of the data, one of: sum: ")
    assert parts.line().count("l2 norm bound") == 1


def test_parts_of_disjoint_data_are_checked_and_have_no_common_factor():
    with pytest.raises(TypeError, match="none can be a SampledEvent"):
        ParallelComposition((STEP,))
    with pytest.raises(TypeError, match="events must be a Event"):
        ParallelComposition((1.0,))
    with pytest.raises(ValueError, match="events must hold at least one event"):
        ParallelComposition(())
    # Several records of one unit may be in several parts.
    with pytest.raises(UnsupportedEventError, match="ParallelComposition cannot be scaled"):
        scale_sensitivity(ParallelComposition((SUM,)), 2)
