"""Renyi differential privacy of a Gaussian in exactly one of several steps, drawn uniformly.

With the likelihood ratio R = 1/t sum_i Y_i of the worst pair (`tfdp.accounting.losses.allocation`)

    A = E_Q[R^a]          for D(P || Q), where a unit is removed,
    A = E_Q[R^(1 - a)]    for D(Q || P), where one is added.

Both powers are convex, so that the R on a grid, whose means of convex functions are larger, gives
upper bounds. Three things need care.

*Y above the grid* is zero in the R on the grid, which is R where no Y is above. Where Y_1 is, what
the others contribute is independent of it, and at most R. With x = E[R^a]^(1/a), q the probability
of such a Y and B = E[Y^a; Y above the grid]^(1/a), by Minkowski's inequality

    x^a <= E[(R on the grid)^a] + t (B / t + x q^(1/a))^a.

Any bound of x may stand on the right, and becomes a better one. Products of probabilities that
underflow are counted as if each had the largest R there is.

*R near zero.* r^(1 - a) is continued below some r_0 by its tangent there, which is convex, finite
at zero and smaller. What it is smaller by is at most E[R^(1 - a); R < r_0]. With b = a - 1, for
every p >= 1, by Hoelder's inequality, and because R is at least the geometric mean of the Y_i,

    E[R^-b; R < r_0] <= E[R^(-b p)]^(1/p) Q(R < r_0)^(1 - 1/p),
    E[R^(-b p)]^(1/p) <= exp(b (b p / t + 1) / (2 z^2)),
    Q(R < r_0) <= E[max(0, c - R)] / (c - r_0)    for every c > r_0,

of which the last is the mean of a convex function. With p = 1 and r_0 infinite this bounds A by
itself: D(Q || P) <= ((a - 1) / t + 1) / (2 z^2).

*One large Y* is what counts at large orders, where the grid is wide. There integer moments are
exact: E_Q[R^a] = a! / t^a times the coefficient of x^a in (sum_k E[Y^k] x^k / k!)^t, with E[Y^k] =
exp(k (k - 1) / (2 z^2)). Between integers the logarithm of a moment is at most its chord.

*All else fails* where orders are very large: divergences are jointly quasi-convex, so that a unit
whose step is known bounds both, a / (2 z^2).
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tfdp.accounting.losses.allocation import Ratio, allocation_ratio
from tfdp.accounting.mechanisms import AllocatedGaussian

# Relative error of a term of a moment.
_ROUNDOFF = 2.0**-50
# Logarithms of the probabilities under Q below r_0 that are tried.
_LOG_TAILS = (-60.0, -50.0, -40.0, -30.0, -20.0, -10.0)
# By so many points of the grid c is above r_0.
_ABOVE = (5, 20, 60)
# Logarithm of a bound of all that underflows: 10^6 products in each of 50 sums, 10^-323 each.
_UNDERFLOW = -723.0
# How often the bound of x is made better.
_ROUNDS = 60
# Integer orders that are computed, and what rounding may take from the logarithms of their moments.
_INTEGERS, _LOG_ROUNDOFF = 128, 1e-10


def _log_moment(ratio: Ratio, log_values: np.ndarray) -> np.ndarray:
    """Returns log(sum of probabilities exp(log_values)) for every row."""
    with np.errstate(divide="ignore"):
        terms = log_values + np.log(ratio.probabilities)
    largest = np.max(terms, axis=1, keepdims=True)
    return np.log(np.sum(np.exp(terms - largest), axis=1)) + largest[:, 0]


def _excess(ratio: Ratio, exponents: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Returns sum of probabilities (e^exponent - 1 - slope (r - 1)), which is not negative.

    It keeps the digits that a moment near one would lose; a bound of the rounding is added.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        power, line = np.expm1(exponents), slope * (ratio.values - 1)
        found = (power - line) @ ratio.probabilities
        found += _ROUNDOFF * (np.abs(power) + np.abs(line)) @ ratio.probabilities
    return np.where(np.isfinite(found), np.maximum(found, 0.0), np.inf)


@functools.lru_cache(maxsize=256)
def _integer_moments(num_steps: int, z: float) -> np.ndarray:
    """Returns upper bounds of log E_Q[R^a] for a = 0, 1, ..., _INTEGERS."""
    from scipy import special

    k = np.arange(_INTEGERS + 1.0)
    once = k * (k - 1) / 2 / z / z - special.gammaln(k + 1)
    # Row n, column i: the coefficient n - i, or none.
    at = np.subtract.outer(np.arange(len(k)), np.arange(len(k)))

    def product(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        terms = np.where(at >= 0, one + other[np.maximum(at, 0)], -np.inf)
        largest = terms.max(axis=1, keepdims=True)
        return np.log(np.exp(terms - largest).sum(axis=1)) + largest[:, 0]

    total = once
    for digit in f"{num_steps:b}"[1:]:
        total = product(total, total)
        if digit == "1":
            total = product(total, once)
    found = total + special.gammaln(k + 1) - k * math.log(num_steps)
    return np.asarray(found + _LOG_ROUNDOFF * (1 + np.abs(found)))


def _between_integers(num_steps: int, z: float, orders: np.ndarray) -> np.ndarray:
    moments = _integer_moments(num_steps, z)
    chords = np.interp(orders, np.arange(len(moments)), moments)
    return np.where(orders <= _INTEGERS, chords, np.inf)


def _removed(ratio: Ratio, num_steps: int, z: float, orders: np.ndarray) -> np.ndarray:
    """Returns a bound of log E_Q[R^a]."""
    from scipy import special

    a = orders[:, np.newaxis]
    with np.errstate(divide="ignore"):
        exponents = a * np.log(ratio.values)
    # E[R] is at most one.
    small = np.log1p(_excess(ratio, exponents, a))
    inside = np.where(small < 1.0, small, _log_moment(ratio, exponents))
    top = math.log(ratio.most)
    inside = np.logaddexp(inside, _UNDERFLOW + orders * top)
    # At the mean a - 1/2 of log Y z^2 under its density times Y^a.
    log_b = (orders - 1) / 2 / z / z
    log_b += special.log_ndtr(-(top * z - (orders - 0.5) / z)) / orders - math.log(num_steps)
    log_q = float(special.log_ndtr(-(top * z + 0.5 / z))) / orders
    log_x = (orders - 1) / 2 / z / z
    for _ in range(_ROUNDS):
        beyond = math.log(num_steps) + orders * np.logaddexp(log_b, log_x + log_q)
        log_x = np.minimum(log_x, np.logaddexp(inside, beyond) / orders)
    return orders * log_x


def _added(ratio: Ratio, num_steps: int, z: float, orders: np.ndarray) -> np.ndarray:
    """Returns a bound of log E_Q[R^(1 - a)]."""
    b = (orders - 1)[:, np.newaxis]
    by_mean = (orders - 1) / 2 / z / z
    best = by_mean * ((orders - 1) / num_steps + 1)
    values, probabilities = ratio.values, ratio.probabilities
    log_values = np.log(values[1:])
    below = np.cumsum(probabilities)[1:]
    for start in sorted({int(np.searchsorted(below, math.exp(tail))) for tail in _LOG_TAILS}):
        if start + max(_ABOVE) >= len(log_values):
            continue
        log_0, r_0 = float(log_values[start]), float(values[start + 1])
        with np.errstate(over="ignore"):
            # Below r_0 the tangent: r_0^-b (1 + b (1 - r / r_0)).
            tangent = np.log1p(b * np.maximum(0.0, 1 - values / r_0))
        exponents = np.append(log_0, np.maximum(log_values, log_0)) * -b + tangent
        small = np.log1p(_excess(ratio, exponents, -b) + b[:, 0] * ratio.lost)
        inside = np.where(small < 1.0, small, _log_moment(ratio, exponents))
        above = values[[start + 1 + number for number in _ABOVE]]
        means = np.maximum(0.0, np.subtract.outer(above, values)) @ probabilities
        log_below = math.log(float(np.min(means / (above - r_0))) + 1e-300)
        p = np.maximum(1.0, np.sqrt(max(0.0, -log_below) * 2 * z * z * num_steps) / b[:, 0])
        rest = by_mean * (b[:, 0] * p / num_steps + 1) + (1 - 1 / p) * min(0.0, log_below)
        best = np.minimum(best, np.logaddexp(inside, rest))
    return best


def rdp_allocated_gaussian(
    num_steps: int, noise_multiplier: float, orders: np.ndarray
) -> np.ndarray:
    """Returns an upper bound of the divergence of one pass at every order, in both directions.

    Guarantees:
        An upper bound; where orders are moderate (their divergence is not much above the
        logarithm of t) within a relative 10^-3 of the truth.

    Args:
        num_steps: t, from 2 to 2^20.
        noise_multiplier: z, from 0.05 to 10^4.
        orders: Float64 vector of orders, all above 1 and finite.

    Returns:
        Float64 vector as long as `orders`.
    """
    orders = np.asarray(orders, dtype=np.float64)
    t, z = num_steps, noise_multiplier
    ratio = allocation_ratio(t, z)
    removed = np.minimum(_removed(ratio, t, z, orders), _between_integers(t, z, orders))
    moments = np.maximum(removed, _added(ratio, t, z, orders))
    return np.minimum(moments / (orders - 1), orders / 2 / z / z)


def allocated_gaussian_curve(
    mechanisms: Sequence[AllocatedGaussian], counts: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the total divergence of `counts[i]` times `mechanisms[i]` as a function of orders."""
    return lambda orders: (
        counts
        @ np.array(
            [rdp_allocated_gaussian(m.num_steps, m.noise_multiplier, orders) for m in mechanisms]
        )
    )
