"""What sampling makes of a mechanism: tables from its type to the same mechanism on a sample."""

from collections.abc import Callable, Mapping
from typing import Any

from tfdp.accounting.mechanisms import (
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    Mechanism,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    SkellamNoise,
    amplified_epsilon,
)

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


def _concentrated_twice(mechanism: Concentrated, q: float) -> Mechanism:
    # The square root of rho is a distance (Bun and Steinke 2016, arXiv:1605.02065, section 5).
    return Concentrated(4 * mechanism.rho)


def _skellam_twice(mechanism: SkellamNoise, q: float) -> Mechanism:
    return SkellamNoise(2 * mechanism.l1_norm, 2 * mechanism.l2_norm, mechanism.variance)


def _gaussian_on_fixed_size(mechanism: Any, q: float, n: int, population: int) -> Mechanism:
    return FixedSizeGaussian(n, population, mechanism.noise_multiplier)


def _epsilon_on_fixed_size(mechanism: Any, q: float, n: int, population: int) -> Mechanism:
    return _epsilon_on_sample(mechanism, q)


# Of these no amplification is proven, and they are charged as they are: outputs are mixtures over
# samples, and divergences are jointly quasi-convex.
UNAMPLIFIED: tuple[type[Mechanism], ...] = (Concentrated, SkellamNoise)
POISSON: Amplification = {
    BoundedRange: _epsilon_on_sample,
    Concentrated: _unchanged,
    PureEpsilon: _epsilon_on_sample,
    RandomizedResponse: _unchanged,
    SampledGaussian: _on_sample,
    SampledLaplace: _on_sample,
    SkellamNoise: _unchanged,
}
POISSON_REPLACE: Amplification = {
    BoundedRange: _epsilon_on_sample_twice,
    Concentrated: _concentrated_twice,
    PureEpsilon: _epsilon_on_sample_twice,
    RandomizedResponse: _unchanged,
    SampledGaussian: _on_sample_twice,
    SampledLaplace: _on_sample_twice,
    SkellamNoise: _skellam_twice,
}
FIXED_SIZE_REPLACE: Amplification = {
    BoundedRange: _epsilon_on_fixed_size,
    Concentrated: _unchanged,
    PureEpsilon: _epsilon_on_fixed_size,
    RandomizedResponse: _unchanged,
    SampledGaussian: _gaussian_on_fixed_size,
    SampledLaplace: _epsilon_on_fixed_size,
    SkellamNoise: _unchanged,
}
