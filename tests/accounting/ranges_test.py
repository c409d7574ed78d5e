"""What is charged for numbers beyond those that accountants compute with."""

import pytest

from tfdp.accounting.mechanisms import (
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    NoPrivacy,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    SkellamNoise,
)
from tfdp.accounting.ranges import LARGEST_MULTIPLIER, SMALLEST_MULTIPLIER, within_range

USUAL = [
    SampledGaussian(0.01, 1.0),
    SampledLaplace(0.5, 2.0),
    FixedSizeGaussian(10, 1000, 1.0),
    RemoveThenAdd(SampledGaussian(0.01, 1.0)),
    PureEpsilon(1.0),
    BoundedRange(0.5),
    Concentrated(0.25),
    SkellamNoise(5.0, 2.0, 9.0),
    RandomizedResponse(0.25, 4, True),
    NoPrivacy(),
]


@pytest.mark.parametrize("mechanism", USUAL, ids=lambda m: type(m).__name__)
def test_within_the_ranges_nothing_changes(mechanism):
    assert within_range(mechanism) == mechanism


@pytest.mark.parametrize("kind", [SampledGaussian, SampledLaplace])
def test_ends_of_the_ranges_belong_to_them(kind):
    for multiplier in (SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER):
        assert within_range(kind(1.0, multiplier)) == kind(1.0, multiplier)


@pytest.mark.parametrize("kind", [SampledGaussian, SampledLaplace])
def test_beyond_them_the_nearest_that_costs_more(kind):
    # Less noise and more frequent samples cost more.
    assert within_range(kind(0.5, 1e300)) == kind(0.5, 1e15)
    assert within_range(kind(1e-200, 1.0)) == kind(1e-30, 1.0)
    assert within_range(kind(0.5, 1e-11)) == NoPrivacy()


def test_a_pair_is_charged_as_what_it_is_made_of():
    assert within_range(RemoveThenAdd(SampledLaplace(0.5, 1e20))) == RemoveThenAdd(
        SampledLaplace(0.5, 1e15)
    )
    assert within_range(RemoveThenAdd(SampledLaplace(0.5, 1e-20))) == NoPrivacy()


def test_epsilons_are_rounded_up_or_infinite():
    assert within_range(PureEpsilon(1e-40)) == PureEpsilon(1e-30)
    assert within_range(BoundedRange(2e10)) == NoPrivacy()
    assert within_range(Concentrated(6e19)) == NoPrivacy()
    assert within_range(SkellamNoise(1e22, 1e11, 0.5)) == NoPrivacy()
    assert within_range(SkellamNoise(1.0, 1.0, 1e40)) == SkellamNoise(1.0, 1.0, 1e30)
    assert within_range(Concentrated(1e-40)).rho == pytest.approx(5e-31)
    assert within_range(RandomizedResponse(1e-31, 4, True)) == NoPrivacy()
