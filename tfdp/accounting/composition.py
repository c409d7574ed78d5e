"""Composition theorems about (epsilon, delta) alone: what was known before moments were tracked."""

import math
from collections.abc import Callable
from typing import Any

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.accounting.mechanisms import (
    FixedSizeGaussian,
    PureEpsilon,
    SampledGaussian,
    amplified_epsilon,
)

# Logarithms of deltas and of shares of delta are searched down to these.
_LOWEST_DELTA, _LOWEST_SHARE = -640.0, -30.0
# 640 / 2^40 is what remains open of the logarithm of a delta.
_BISECTIONS = 40
# No finite epsilon of these theorems is as large.
_HUGE = 1e60


def _gaussian_on_sample(z: float, q: float, delta: float) -> float:
    # An (epsilon, delta)-private mechanism on a sample is (log(1 + q (e^epsilon - 1)), q delta)-
    # private (Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, theorems 8 and 9).
    if delta >= q:
        return 0.0
    if delta == 0:  # A share of a tiny delta.
        return math.inf
    return amplified_epsilon(gaussian_epsilon(1 / z, delta / q), q)


def _sampled_gaussian(mechanism: SampledGaussian, delta: float) -> float:
    return _gaussian_on_sample(mechanism.noise_multiplier, mechanism.sampling_probability, delta)


def _fixed_size_gaussian(mechanism: FixedSizeGaussian, delta: float) -> float:
    q = mechanism.sample_size / mechanism.population_size
    return _gaussian_on_sample(mechanism.noise_multiplier, q, delta)


class _Composition(Accountant):
    """Prices every step as an (epsilon, delta), with one delta for all that are not pure."""

    # Functions of the mechanism and of a step's delta.
    prices = {
        FixedSizeGaussian: _fixed_size_gaussian,
        PureEpsilon: lambda mechanism, delta: mechanism.epsilon,
        SampledGaussian: _sampled_gaussian,
    }

    def _steps(self, delta: float) -> list[tuple[float, int]]:
        """Returns the epsilon of every step that has this delta, and how many there are."""
        return [(self.prices[type(m)](m, delta), n) for m, n in self._terms()]

    def _impure(self) -> int:
        return sum(n for m, n in self._terms() if not isinstance(m, PureEpsilon))

    def _delta(self, epsilon: float) -> float:
        if epsilon >= self._pure_epsilon():
            return 0.0
        return _solve_for_delta(self._epsilon, epsilon)


def _solve_for_delta(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """Returns the smallest delta whose epsilon is at most this one; epsilon falls with delta."""
    low, high = _LOWEST_DELTA, math.log(math.nextafter(1.0, 0.0))
    if epsilon_at(math.exp(high)) > epsilon:
        return 1.0
    if epsilon_at(math.exp(low)) <= epsilon:
        return math.exp(low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if epsilon_at(math.exp(middle)) > epsilon:
            low = middle
        else:
            high = middle
    return math.exp(high)


class BasicComposition(_Composition):
    """Epsilons add up, and deltas do (Dwork and Roth 2014, theorem 3.16).

    Guarantees:
        Epsilon and delta are upper bounds, and hardly useful ones beyond a few steps. A Gaussian
        step is priced by its exact trade-off between epsilon and delta, on a sample by the
        amplification theorem. The delta of the whole is shared equally among the steps that need
        one.

    Example:
        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> round(BasicComposition().compose(step, count=10_000).get_epsilon(1e-5), 1)
        223.5
    """

    takes_many_kinds = True

    def _epsilon(self, delta: float) -> float:
        share = delta / max(1, self._impure())
        return math.fsum(n * epsilon for epsilon, n in self._steps(share))


class StrongComposition(_Composition):
    """Advanced composition of unequal steps (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776).

    With steps that are (epsilon_i, delta_i)-private the whole is, for every slack s (theorem 3.5),

        epsilon = min(sum epsilon_i,
                      sum epsilon_i tanh(epsilon_i / 2) + sqrt(2 log(1/s) sum epsilon_i^2))
        delta = 1 - (1 - s) prod (1 - delta_i).

    Guarantees:
        Epsilon and delta are upper bounds. Steps are priced as by `BasicComposition`; how much of
        delta they have, and how much is slack, is chosen to make epsilon smallest.

    Edge cases:
        Figure 2 of Abadi et al. 2016 (arXiv:1607.00133) shows 9.34 for the example below. That is
        Dwork's theorem on steps of (q epsilon, q delta); on a sample they are
        (log(1 + q (e^epsilon - 1)), q delta), which is more than twice as much there.

    Example:
        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> round(StrongComposition().compose(step, count=10_000).get_epsilon(1e-5), 2)
        14.18
    """

    def _epsilon(self, delta: float) -> float:
        impure = self._impure()
        if not impure:
            return _advanced(self._steps(0.0), delta)

        def composed(log_share: float) -> float:
            # The steps take this share of log(1 - delta), slack the rest.
            share = math.exp(log_share)
            slack = -math.expm1((1 - share) * math.log1p(-delta))
            step = -math.expm1(share * math.log1p(-delta) / impure)
            return _advanced(self._steps(step), slack)

        return _minimum(composed)


def _advanced(steps: list[tuple[float, int]], slack: float) -> float:
    total = math.fsum(n * epsilon for epsilon, n in steps)
    if slack <= 0 or total == math.inf:
        return total
    mean = math.fsum(n * epsilon * math.tanh(epsilon / 2) for epsilon, n in steps)
    width = math.hypot(*(math.sqrt(n) * epsilon for epsilon, n in steps))
    return min(total, mean + width * math.sqrt(-2 * math.log(slack)))


def _minimum(function: Callable[[float], float]) -> float:
    """Returns the smallest value of a function of a share's logarithm; any share is valid."""
    from scipy import optimize

    found: Any = optimize.minimize_scalar(
        # The search subtracts values, which must be finite.
        lambda log_share: min(function(log_share), _HUGE),
        bounds=(_LOWEST_SHARE, 0.0),
        options={"xatol": 1e-10},
    )
    return min(function(float(found.x)), function(0.0))
