"""Gaussians that see everything, and those that see a sample."""

import math
from typing import Any

from tfdp.accounting.mechanisms import (
    FixedSizeGaussian,
    Mechanism,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    TruncatedGaussian,
)


def sampling_of(mechanism: Mechanism) -> str | None:
    """Returns what a message calls the sampling; None where there is none, or epsilon is pure."""
    if isinstance(mechanism, SampledGaussian) and mechanism.sampling_probability < 1:
        return f"a Poisson sample with sampling_probability={mechanism.sampling_probability}"
    if isinstance(mechanism, TruncatedGaussian):
        return f"a truncated sample with sampling_probability={mechanism.sampling_probability}"
    if isinstance(mechanism, FixedSizeGaussian):
        return f"a sample of {mechanism.sample_size} of {mechanism.population_size}"
    if isinstance(mechanism, RemoveThenAdd) and sampling_of(mechanism.mechanism) is not None:
        return f"{sampling_of(mechanism.mechanism)} under REPLACE_ONE"
    return None


def merge_unsampled(terms: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Returns the terms with all Gaussians that see everything as one: their 1/z^2 add up."""
    rest, inverses = [], []
    for mechanism, count in terms:
        if isinstance(mechanism, SampledGaussian) and mechanism.sampling_probability == 1:
            inverses.append(math.sqrt(count) / mechanism.noise_multiplier)
        else:
            rest.append((mechanism, count))
    return [*rest, (SampledGaussian(1.0, 1 / math.hypot(*inverses)), 1)] if inverses else rest


def only_gaussian(terms: list[tuple[Any, int]]) -> float | None:
    """Returns 1 / z where merged terms are one Gaussian that sees everything, or None."""
    mechanism, _ = terms[0]
    if len(terms) > 1 or not isinstance(mechanism, SampledGaussian):
        return None
    return 1 / mechanism.noise_multiplier if mechanism.sampling_probability == 1 else None


def inclusion_probability(terms: list[tuple[Any, int]]) -> float:
    """Returns a bound on the probability that a given unit is in any sample.

    It is also one on delta, whatever epsilon is.
    """

    def once(mechanism: Mechanism) -> float:
        if isinstance(mechanism, (SampledGaussian, SampledLaplace, TruncatedGaussian)):
            return mechanism.sampling_probability
        if isinstance(mechanism, FixedSizeGaussian):
            return mechanism.sample_size / mechanism.population_size
        if isinstance(mechanism, RemoveThenAdd):
            return 2 * once(mechanism.mechanism)
        return 1.0

    return min(1.0, math.fsum(count * once(mechanism) for mechanism, count in terms))
