"""The numbers that accountants compute with, and what is charged for those beyond.

Within these ranges squares, products with counts and exponents stay finite in double precision, and
rounding loses far less than the accuracy that is asked for. A mechanism beyond them is charged as
the nearest one within them that costs at least as much. Where its epsilon would be astronomic
anyway, it is charged as no privacy at all.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from tfdp.accounting.mechanisms import (
    DEARER,
    AllocatedGaussian,
    BestOfPureRuns,
    BinnedGaussian,
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    Mechanism,
    NoPrivacy,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    SeparatedGaussian,
    SkellamNoise,
    TruncatedGaussian,
)

# With less noise one release has an epsilon of 10^10 or more; with more, 2^63 have one of 10^-5.
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-10, 1e15
# 2^63 samples with this probability hold a given unit with probability 10^-11.
_SMALLEST_PROBABILITY = 1e-30
_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-30, 1e10
# Of a random answer in randomized response.
_SMALLEST_NOISE_PARAMETER = 1e-30


# The products of all pairs of bins are kept: with more bins a unit's is charged as known, or as one
# of those that are orthogonal.
MOST_BINS = 4096
# With less noise a mixture of steps is hardly cheaper than one step that is known; grids for more
# noise or more steps would be finer than double precision.
_LEAST_ALLOCATED, _MOST_ALLOCATED, _MOST_STEPS = 0.05, 1e4, 2**20


def _noise(mechanism: Any) -> float:
    return min(mechanism.noise_multiplier, LARGEST_MULTIPLIER)


def _sampled(mechanism: Any) -> Mechanism:
    if mechanism.noise_multiplier < SMALLEST_MULTIPLIER:
        return NoPrivacy()
    q = max(mechanism.sampling_probability, _SMALLEST_PROBABILITY)
    return type(mechanism)(q, _noise(mechanism))


def _fixed_size(mechanism: FixedSizeGaussian) -> Mechanism:
    if mechanism.noise_multiplier < SMALLEST_MULTIPLIER:
        return NoPrivacy()
    return FixedSizeGaussian(mechanism.sample_size, mechanism.population_size, _noise(mechanism))


def _allocated(mechanism: AllocatedGaussian) -> Mechanism:
    if mechanism.num_steps < 2 or mechanism.noise_multiplier < _LEAST_ALLOCATED:
        return within_range(DEARER[AllocatedGaussian](mechanism))
    # Rounded down, so that multipliers that differ by rounding errors are one mechanism. Of more
    # steps somebody is told some, at random, one of which is that of the unit.
    z = math.floor(min(mechanism.noise_multiplier, _MOST_ALLOCATED) * 2.0**30) / 2.0**30
    return AllocatedGaussian(min(mechanism.num_steps, _MOST_STEPS), z)


def _separated(mechanism: SeparatedGaussian) -> Mechanism:
    charged: Any = DEARER[SeparatedGaussian](mechanism)
    if charged.noise_multiplier < SMALLEST_MULTIPLIER:
        return NoPrivacy()
    q = max(mechanism.sampling_probability, _SMALLEST_PROBABILITY)
    return dataclasses.replace(mechanism, sampling_probability=q)


def _binned(mechanism: BinnedGaussian) -> Mechanism:
    charged: Any = DEARER[BinnedGaussian](mechanism)
    z = charged.noise_multiplier
    amplified = isinstance(charged, AllocatedGaussian)
    if mechanism.num_bins < 2 or mechanism.num_bins > MOST_BINS or not z > _LEAST_ALLOCATED:
        return within_range(charged)
    if amplified and z > _MOST_ALLOCATED:
        return within_range(dataclasses.replace(charged, noise_multiplier=_MOST_ALLOCATED))
    # Of independent noise it is the whole of the bins.
    return within_range(charged) if mechanism.bands == 1 else mechanism


def _truncated(mechanism: TruncatedGaussian) -> Mechanism:
    if mechanism.noise_multiplier < 2 * SMALLEST_MULTIPLIER:
        return NoPrivacy()
    q = max(mechanism.sampling_probability, _SMALLEST_PROBABILITY)
    if mechanism.overflow_probability == 0:
        return _sampled(SampledGaussian(q, mechanism.noise_multiplier))
    return dataclasses.replace(
        mechanism, sampling_probability=q, noise_multiplier=_noise(mechanism)
    )


def _twice(mechanism: RemoveThenAdd) -> Mechanism:
    once: Any = within_range(mechanism.mechanism)
    if isinstance(once, NoPrivacy):
        return once
    if type(once) is not type(mechanism.mechanism):
        return within_range(DEARER[RemoveThenAdd](mechanism))
    return RemoveThenAdd(once)


def _concentrated(mechanism: Concentrated) -> Mechanism:
    # The rho of a Gaussian is 1 / (2 z^2).
    if mechanism.rho > 0.5 / SMALLEST_MULTIPLIER**2:
        return NoPrivacy()
    return Concentrated(max(mechanism.rho, 0.5 / LARGEST_MULTIPLIER**2))


def _skellam(mechanism: SkellamNoise) -> Mechanism:
    z = math.sqrt(mechanism.variance) / mechanism.l2_norm
    if z < SMALLEST_MULTIPLIER:
        return NoPrivacy()
    if z <= LARGEST_MULTIPLIER:
        return mechanism
    return dataclasses.replace(mechanism, variance=(LARGEST_MULTIPLIER * mechanism.l2_norm) ** 2)


def _pure(mechanism: Any) -> Mechanism:
    if mechanism.epsilon > _LARGEST_EPSILON:
        return NoPrivacy()
    return type(mechanism)(max(mechanism.epsilon, _SMALLEST_EPSILON))


def _randomized_response(mechanism: RandomizedResponse) -> Mechanism:
    return NoPrivacy() if mechanism.noise_parameter < _SMALLEST_NOISE_PARAMETER else mechanism


def _best_of_pure_runs(mechanism: BestOfPureRuns) -> Mechanism:
    charged = _pure(DEARER[BestOfPureRuns](mechanism))
    return charged if isinstance(charged, NoPrivacy) else mechanism


_WITHIN: Mapping[type[Mechanism], Callable[[Any], Mechanism]] = {
    AllocatedGaussian: _allocated,
    BestOfPureRuns: _best_of_pure_runs,
    BinnedGaussian: _binned,
    BoundedRange: _pure,
    Concentrated: _concentrated,
    FixedSizeGaussian: _fixed_size,
    NoPrivacy: lambda mechanism: mechanism,
    PureEpsilon: _pure,
    RandomizedResponse: _randomized_response,
    RemoveThenAdd: _twice,
    SampledGaussian: _sampled,
    SampledLaplace: _sampled,
    SeparatedGaussian: _separated,
    SkellamNoise: _skellam,
    TruncatedGaussian: _truncated,
}


def within_range(mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism, or the nearest one within the ranges that costs at least as much."""
    return _WITHIN[type(mechanism)](mechanism)
