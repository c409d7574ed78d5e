"""tfdp.accounting.unsampled: Gaussians that see everything add up to one."""

import math

import pytest

from tfdp.accounting.mechanisms import (
    FixedSizeGaussian,
    PureEpsilon,
    RemoveThenAdd,
    SampledGaussian,
)
from tfdp.accounting.unsampled import (
    inclusion_probability,
    merge_unsampled,
    only_gaussian,
    sampling_of,
)


def test_inverse_squares_of_multipliers_add_up():
    # 4 / 2^2 + 1 / 3^2 = 10 / 9.
    merged = merge_unsampled([(SampledGaussian(1.0, 2.0), 4), (SampledGaussian(1.0, 3.0), 1)])
    assert merged == [(SampledGaussian(1.0, pytest.approx(math.sqrt(0.9), rel=1e-15)), 1)]
    assert only_gaussian(merged) == pytest.approx(math.sqrt(10 / 9), rel=1e-15)


def test_what_sees_a_sample_is_left_as_it_is():
    terms = [(SampledGaussian(0.1, 2.0), 4), (PureEpsilon(1.0), 2)]
    assert merge_unsampled(terms) == terms
    both = merge_unsampled([*terms, (SampledGaussian(1.0, 2.0), 1)])
    assert both == [*terms, (SampledGaussian(1.0, 2.0), 1)]
    assert only_gaussian(both) is None
    assert only_gaussian([(SampledGaussian(0.1, 2.0), 1)]) is None
    assert only_gaussian([(PureEpsilon(1.0), 1)]) is None


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (SampledGaussian(1.0, 2.0), None),
        (PureEpsilon(1.0), None),
        (SampledGaussian(0.1, 2.0), "a Poisson sample with sampling_probability=0.1"),
        (FixedSizeGaussian(3, 10, 2.0), "a sample of 3 of 10"),
        (
            RemoveThenAdd(SampledGaussian(0.1, 2.0)),
            "a Poisson sample with sampling_probability=0.1 under REPLACE_ONE",
        ),
        (RemoveThenAdd(SampledGaussian(1.0, 2.0)), None),
    ],
)
def test_messages_call_the_sampling_by_its_name(mechanism, words):
    assert sampling_of(mechanism) == words


@pytest.mark.parametrize(
    ("mechanism", "probability"),
    [
        (SampledGaussian(0.1, 2.0), 0.1),
        (FixedSizeGaussian(1, 10, 2.0), 0.1),
        (RemoveThenAdd(SampledGaussian(0.1, 2.0)), 0.2),
    ],
)
def test_a_unit_is_in_any_of_the_samples_at_most_as_often_as_in_all_added_up(
    mechanism, probability
):
    for count in (1, 3):
        assert inclusion_probability([(mechanism, count)]) == pytest.approx(count * probability)
    assert inclusion_probability([(mechanism, 3), (SampledGaussian(0.1, 9.0), 1)]) > 3 * probability
    assert inclusion_probability([(mechanism, 99)]) == 1.0
    assert inclusion_probability([(PureEpsilon(1.0), 1)]) == 1.0
