"""tfdp.events.releases: bounds and noise make the noise multiplier."""

import pytest

from tfdp.events import (
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    GaussianSumEvent,
    LaplaceSumEvent,
    RandomizedResponseEvent,
)


@pytest.mark.parametrize(
    "event",
    [
        GaussianSumEvent(0.5, 1.5),
        DiscreteGaussianSumEvent(0.5, 1.5, 0.125, 10),
        LaplaceSumEvent(0.5, 1.5),
    ],
)
def test_noise_multiplier_is_noise_over_bound(event):
    assert event.noise_multiplier == 3.0


@pytest.mark.parametrize("make", [GaussianSumEvent, LaplaceSumEvent])
def test_no_noise_can_be_said_and_no_bound_cannot(make):
    assert make(1.0, 0.0).noise_multiplier == 0.0
    with pytest.raises(ValueError, match="norm_bound must be finite, greater than 0"):
        make(0.0, 1.0)


def test_delta_is_a_probability_that_leaves_something():
    assert EpsilonDeltaEvent(0.0, 0.999).delta == 0.999
    for delta in (0.0, 1.0, 1):
        with pytest.raises(ValueError, match="delta must be"):
            EpsilonDeltaEvent(1.0, delta)


def test_a_report_has_at_least_two_values():
    assert RandomizedResponseEvent(0, 2).num_buckets == 2
    with pytest.raises(ValueError, match="num_buckets must be at least 2"):
        RandomizedResponseEvent(0.5, 1)
    with pytest.raises(ValueError, match="at most 1"):
        RandomizedResponseEvent(1.1, 2)


@pytest.mark.parametrize(
    ("bound", "noise", "line"),
    [
        (1.0, 1.1, "l2 norm bound 1, noise stddev 1.1"),
        (1.0000004, 1.0999996, "l2 norm bound 1.0000004, noise stddev 1.0999996"),
        (0.9999996, 1.1000004, "l2 norm bound 1, noise stddev 1.1"),
    ],
)
def test_a_line_rounds_to_what_is_no_better(bound, noise, line):
    assert GaussianSumEvent(bound, noise).line() == f"sum: {line}"
