"""tfdp.accounting.amplification: what a sample is worth to every mechanism."""

import math

import pytest

from tfdp.accounting.amplification import (
    ALLOCATION,
    ALLOCATION_REPLACE,
    FIXED_SIZE_REPLACE,
    POISSON,
    POISSON_REPLACE,
    UNAMPLIFIED,
    as_a_whole,
    pure_epsilon,
)
from tfdp.accounting.mechanisms import (
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    SkellamNoise,
)
from tfdp.events import UnsupportedEventError

EVERYTHING = [
    BoundedRange(0.7),
    PureEpsilon(0.7),
    RandomizedResponse(0.5, 3, False),
    SampledGaussian(1.0, 2.0),
    SampledLaplace(1.0, 2.0),
]


def test_every_table_knows_every_mechanism():
    tables = (POISSON, POISSON_REPLACE, FIXED_SIZE_REPLACE, ALLOCATION, ALLOCATION_REPLACE)
    for table in tables:
        assert set(table) == {type(mechanism) for mechanism in EVERYTHING}


@pytest.mark.parametrize("q", [1e-6, 0.1, 0.5])
def test_epsilon_on_a_sample_is_the_logarithm_of_a_mixture(q):
    # Balle, Barthe and Gaboardi 2018, theorem 8: log(1 + q (e^epsilon - 1)).
    expected = math.log1p(q * math.expm1(0.7))
    for mechanism in (PureEpsilon(0.7), BoundedRange(0.7)):
        once = POISSON[type(mechanism)](mechanism, q)
        assert once == PureEpsilon(pytest.approx(expected, rel=1e-14))
        twice = POISSON_REPLACE[type(mechanism)](mechanism, q)
        assert twice == PureEpsilon(pytest.approx(2 * expected, rel=1e-14))


def test_large_samples_keep_what_is_known_beside_epsilon():
    assert POISSON[BoundedRange](BoundedRange(0.7), 0.51) == BoundedRange(0.7)


def test_noise_on_a_sample_keeps_its_multiplier():
    assert POISSON[SampledGaussian](SampledGaussian(1.0, 2.0), 0.1) == SampledGaussian(0.1, 2.0)
    assert POISSON[SampledLaplace](SampledLaplace(1.0, 2.0), 0.1) == SampledLaplace(0.1, 2.0)
    twice = POISSON_REPLACE[SampledGaussian](SampledGaussian(1.0, 2.0), 0.1)
    assert twice == RemoveThenAdd(SampledGaussian(0.1, 2.0))
    fixed = FIXED_SIZE_REPLACE[SampledGaussian](SampledGaussian(1.0, 2.0), 0.1, 10, 100)
    assert fixed == FixedSizeGaussian(10, 100, 2.0)


def test_reports_that_can_be_told_apart_gain_nothing():
    report = RandomizedResponse(0.5, 3, False)
    assert POISSON[RandomizedResponse](report, 0.1) is report
    assert POISSON_REPLACE[RandomizedResponse](report, 0.1) is report
    assert FIXED_SIZE_REPLACE[RandomizedResponse](report, 0.1, 10, 100) is report


def test_epsilon_of_laplace_noise_is_bound_over_scale():
    assert pure_epsilon(SampledLaplace(1.0, 4.0)) == 0.25
    assert pure_epsilon(PureEpsilon(0.7)) == 0.7


NEVER_AMPLIFIED = [Concentrated(0.5), SkellamNoise(2.0, 1.0, 3.0)]


@pytest.mark.parametrize("mechanism", [*EVERYTHING, *NEVER_AMPLIFIED], ids=repr)
def test_without_amplification_a_sample_is_a_full_batch(mechanism):
    assert {type(m) for m in NEVER_AMPLIFIED} == set(UNAMPLIFIED)
    for table in (POISSON, FIXED_SIZE_REPLACE):
        assert as_a_whole(mechanism, table) == mechanism
    replaced = as_a_whole(mechanism, POISSON_REPLACE)
    assert (replaced == mechanism) == isinstance(mechanism, RandomizedResponse)
    with pytest.raises(UnsupportedEventError, match="amplification is not tfdp's"):
        as_a_whole(mechanism, dict(POISSON_REPLACE))
