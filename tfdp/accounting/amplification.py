"""What sampling makes of a mechanism: tables from its type to the same mechanism on a sample."""

from collections.abc import Callable, Mapping
from typing import Any

from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    Mechanism,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    SeparatedGaussian,
    SkellamNoise,
    TruncatedGaussian,
    amplified_epsilon,
)
from tfdp.events import UnsupportedEventError

# Mechanism type -> a function of a mechanism that sees everything and of the sampling's parameters:
# q, and for samples of fixed size n and N.
Amplification = Mapping[type, Callable[..., Mechanism]]


def _unchanged(mechanism: Mechanism, *_: Any) -> Mechanism:
    return mechanism


def pure_epsilon(mechanism: Any) -> float:
    """Returns the epsilon of a mechanism that has a finite one."""
    return (
        1 / mechanism.noise_multiplier if type(mechanism) is SampledLaplace else mechanism.epsilon
    )


def _on_sample(mechanism: Any, q: float) -> Any:
    return type(mechanism)(q, mechanism.noise_multiplier)


def _epsilon_on_sample(mechanism: Any, q: float) -> Any:
    # What is known beside epsilon is lost, and worth more than amplification at large q.
    if q > 0.5:
        return mechanism
    return PureEpsilon(amplified_epsilon(pure_epsilon(mechanism), q))


def _on_sample_twice(mechanism: Any, q: float) -> Mechanism:
    return RemoveThenAdd(_on_sample(mechanism, q))


def _epsilon_on_sample_twice(mechanism: Any, q: float) -> Mechanism:
    amplified = _epsilon_on_sample(mechanism, q)
    return type(amplified)(2 * amplified.epsilon)


def _gaussian_on_fixed_size(mechanism: Any, q: float, n: int, population: int) -> Mechanism:
    return FixedSizeGaussian(n, population, mechanism.noise_multiplier)


def _epsilon_on_fixed_size(mechanism: Any, q: float, n: int, population: int) -> Mechanism:
    return _epsilon_on_sample(mechanism, q)


def _gaussian_truncated(mechanism: Any, q: float, tau: float, keeps_places: bool) -> Mechanism:
    return TruncatedGaussian(q, tau, mechanism.noise_multiplier, keeps_places)


def _on_truncated(function: Callable[..., Mechanism]) -> Callable[..., Mechanism]:
    """Returns what is amplified as on a Poisson sample; that the two differ is charged apart."""
    return lambda mechanism, q, *_: function(mechanism, q)


def _gaussian_allocated(mechanism: Any, num_steps: int) -> AllocatedGaussian:
    return AllocatedGaussian(num_steps, mechanism.noise_multiplier)


def _gaussian_allocated_twice(mechanism: Any, num_steps: int) -> Mechanism:
    if num_steps < 2:
        return SampledGaussian(1.0, mechanism.noise_multiplier / 2)
    return RemoveThenAdd(_gaussian_allocated(mechanism, num_steps))


def _gaussian_separated(mechanism: Any, p: float, separation: int, num_steps: int) -> Mechanism:
    column = (1 / mechanism.noise_multiplier,)
    return SeparatedGaussian(p, separation, num_steps, (column,))


# Of these no amplification is proven, and they are charged as they are: outputs are mixtures over
# samples, and divergences are jointly quasi-convex.
UNAMPLIFIED: tuple[type[Mechanism], ...] = (Concentrated, SkellamNoise)
POISSON: Amplification = {
    BoundedRange: _epsilon_on_sample,
    PureEpsilon: _epsilon_on_sample,
    RandomizedResponse: _unchanged,
    SampledGaussian: _on_sample,
    SampledLaplace: _on_sample,
}
TRUNCATED: Amplification = {
    **{kind: _on_truncated(function) for kind, function in POISSON.items()},
    SampledGaussian: _gaussian_truncated,
}
POISSON_REPLACE: Amplification = {
    BoundedRange: _epsilon_on_sample_twice,
    PureEpsilon: _epsilon_on_sample_twice,
    RandomizedResponse: _unchanged,
    SampledGaussian: _on_sample_twice,
    SampledLaplace: _on_sample_twice,
}
FIXED_SIZE_REPLACE: Amplification = {
    BoundedRange: _epsilon_on_fixed_size,
    PureEpsilon: _epsilon_on_fixed_size,
    RandomizedResponse: _unchanged,
    SampledGaussian: _gaussian_on_fixed_size,
    SampledLaplace: _epsilon_on_fixed_size,
}

# What a mechanism is where two units in a row differ: one goes out of the sample, another comes in.
_REPLACED: dict[type[Mechanism], Callable[[Any], Mechanism]] = {
    BoundedRange: lambda m: BoundedRange(2 * m.epsilon),
    # The square root of rho is a distance (Bun and Steinke 2016, arXiv:1605.02065, section 5).
    Concentrated: lambda m: Concentrated(4 * m.rho),
    PureEpsilon: lambda m: PureEpsilon(2 * m.epsilon),
    RandomizedResponse: _unchanged,
    SampledGaussian: lambda m: SampledGaussian(1.0, m.noise_multiplier / 2),
    SampledLaplace: lambda m: SampledLaplace(1.0, m.noise_multiplier / 2),
    SkellamNoise: lambda m: SkellamNoise(2 * m.l1_norm, 2 * m.l2_norm, m.variance),
}


def _replaced(mechanism: Mechanism, *_: Any) -> Mechanism:
    return _REPLACED[type(mechanism)](mechanism)


# Of steps one of which, drawn uniformly, has the unit: per pass, not per step.
ALLOCATION: Amplification = {
    BoundedRange: _unchanged,
    PureEpsilon: _unchanged,
    RandomizedResponse: _unchanged,
    SampledGaussian: _gaussian_allocated,
    SampledLaplace: _unchanged,
}
ALLOCATION_REPLACE: Amplification = {
    BoundedRange: _replaced,
    PureEpsilon: _replaced,
    RandomizedResponse: _replaced,
    SampledGaussian: _gaussian_allocated_twice,
    SampledLaplace: _replaced,
}
# Of the steps of a pass, in which a unit is so far apart: for each participation there can be, but
# of Gaussians for all together.
SEPARATED: Amplification = {**ALLOCATION, SampledGaussian: _gaussian_separated}


def as_a_whole(mechanism: Mechanism, amplification: Amplification) -> Mechanism:
    """Returns what a mechanism on a sample costs as if the sample held every unit.

    Args:
        mechanism: One that sees everything.
        amplification: What the sampling would make of it.

    Raises:
        UnsupportedEventError: the table is not one of tfdp's, so that nobody knows by how many
            units neighbours differ.
    """
    if amplification is POISSON_REPLACE or amplification is ALLOCATION_REPLACE:
        return _REPLACED[type(mechanism)](mechanism)
    if any(
        amplification is table
        for table in (ALLOCATION, FIXED_SIZE_REPLACE, POISSON, SEPARATED, TRUNCATED)
    ):
        # The mechanism is already that of the neighbours of a sample.
        return mechanism
    raise UnsupportedEventError(
        f"{mechanism!r} is not supported on samples whose amplification is not tfdp's: what it "
        "costs without amplification is not known there."
    )
