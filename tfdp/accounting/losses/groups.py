"""The worst pairs of outputs for groups: data sets that differ in several units.

Of k units that are added or removed, a Poisson sample holds i with the binomial probability w_i,
and each moves the sum by at most 1. So the Gaussian mechanism on it is dominated by

    P = sum_i w_i N(i, z^2) and Q = N(0, z^2), and by Q and P

(Charles et al. 2024, arXiv:2407.07737, by the lemma of Choquette-Choo et al. 2024,
arXiv:2310.15526, on mixtures of Gaussians whose means are vectors). Of a sample of n of N units
the number is hypergeometric instead. It is stochastically smaller than the binomial one with
q = n / (N - k + 1), which is what is charged (`tfdp.accounting.sampling_rules`). All other
mechanisms are charged as k neighbours in a row.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdp.accounting.losses.pairs import (
    PAIRS,
    LossPair,
    differences,
    gaussian_pair,
    laplace_pair,
    pure_pair,
    reverse,
)
from tfdp.accounting.mechanisms import (
    DEARER,
    AllocatedGaussian,
    BoundedRange,
    FixedSizeGaussian,
    Mechanism,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    TruncatedGaussian,
)

# Steps of Newton's method for a convex function, begun within log(k) of the solution.
_NEWTON_STEPS = 12


def _mixture(z: float, log_weights: np.ndarray) -> LossPair:
    """P = sum_i w_i N(i, z^2), Q = N(0, z^2); L(x) = log sum_i w_i exp((2ix - i^2) / (2z^2))."""
    from scipy import special

    k = len(log_weights) - 1
    i = np.arange(1, k + 1, dtype=np.float64)
    intercepts, slopes = log_weights[1:] - i * i / 2 / z / z, i / z / z
    log_none, log_some = float(log_weights[0]), float(np.log(-np.expm1(log_weights[0])))

    def loss(x: float) -> float:
        return float(np.logaddexp(log_none, np.logaddexp.reduce(intercepts + slopes * x)))

    def output(losses: np.ndarray) -> np.ndarray:
        """Returns x with these losses; minus infinity where none is so small."""
        # log(e^loss - w_0), which the terms with i > 0 must add up to.
        with np.errstate(divide="ignore"):
            small = np.expm1(np.minimum(losses, 1.0)) + math.exp(log_some)
            below = np.log(np.maximum(small, 0.0))
        beyond = np.maximum(losses, 1.0)
        target = np.where(losses > 1, beyond + np.log1p(-np.exp(log_none - beyond)), below)
        x = np.min((target[:, None] - intercepts) / slopes, axis=1)
        found = np.isfinite(target)
        for _ in range(_NEWTON_STEPS):
            exponents = intercepts + slopes * x[found, None]
            sums = np.logaddexp.reduce(exponents, axis=1)
            slope = np.sum(np.exp(exponents - sums[:, None]) * slopes, axis=1)
            x[found] -= (sums - target[found]) / slope
        return x

    def cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = output(edges)
        without = differences(special.ndtr(x / z), special.ndtr(-x / z))
        total = math.exp(log_none) * without
        for number, log_weight in zip(i, log_weights[1:], strict=True):
            at = (x - number) / z
            total += math.exp(log_weight) * differences(special.ndtr(at), special.ndtr(-at))
        return total, without

    def bounds(log_tail: float) -> tuple[tuple[float, float], tuple[float, float]]:
        # One half of the tail is for the Gaussians, the other for samples that hold more of the
        # group.
        width = z * math.sqrt(-2 * (log_tail - 1))
        tails = np.logaddexp.accumulate(log_weights[::-1])[::-1]
        most = int(np.flatnonzero(tails > log_tail - 1)[-1])
        return (loss(-width), loss(most + width)), (loss(-width), loss(width))

    return LossPair(cells, bounds)


def _log_binomial(k: int, q: float) -> np.ndarray:
    i = np.arange(k + 1, dtype=np.float64)
    coefficients = np.concatenate([[0.0], np.cumsum(np.log((k + 1 - i[1:]) / i[1:]))])
    return coefficients + i * math.log(q) + (k - i) * math.log1p(-q)


def _sampled_gaussian(mechanism: SampledGaussian, size: int) -> list[LossPair]:
    q, z = mechanism.sampling_probability, mechanism.noise_multiplier
    if q == 1:
        return [gaussian_pair(z / size)]
    pair = _mixture(z, _log_binomial(size, q))
    return [pair, reverse(pair)]


def _sampled_laplace(mechanism: SampledLaplace, size: int) -> list[LossPair]:
    if mechanism.sampling_probability == 1:
        return [laplace_pair(mechanism.noise_multiplier / size)]
    return _as_pure(mechanism, size)


def _as_pure(mechanism: Mechanism, size: int) -> list[LossPair]:
    charged: Any = mechanism
    while not isinstance(charged, PureEpsilon):
        charged = DEARER[type(charged)](charged)
    return [pure_pair(charged.epsilon * size)]


def _bounded_range(mechanism: BoundedRange, size: int) -> list[LossPair]:
    # The ranges of several neighbours in a row add up.
    return PAIRS[BoundedRange](BoundedRange(mechanism.epsilon * size))


def _remove_then_add(mechanism: Any, size: int) -> list[LossPair]:
    charged: Any = DEARER[type(mechanism)](mechanism)
    return GROUP_PAIRS[type(charged)](charged, size)


GROUP_PAIRS: Mapping[type[Mechanism], Callable[[Any, int], list[LossPair]]] = {
    # Outputs are mixtures over the steps of units, which together move the sums by k at most.
    AllocatedGaussian: lambda m, size: [gaussian_pair(m.noise_multiplier / size)],
    BoundedRange: _bounded_range,
    FixedSizeGaussian: lambda m, size: [gaussian_pair(m.noise_multiplier / size)],
    PureEpsilon: _as_pure,
    RandomizedResponse: _as_pure,
    RemoveThenAdd: _remove_then_add,
    SampledGaussian: _sampled_gaussian,
    SampledLaplace: _sampled_laplace,
    # Each unit drives one other out at most.
    TruncatedGaussian: lambda m, size: [gaussian_pair(m.noise_multiplier / 2 / size)],
}
