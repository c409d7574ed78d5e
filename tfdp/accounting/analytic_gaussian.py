"""Epsilon and delta of the Gaussian mechanism that sees everything, in closed form.

With noise multiplier 1 / mu, outputs N(mu, 1) and N(0, 1), and c = epsilon / mu - mu / 2 (Balle and
Wang 2018, arXiv:1805.06530, theorem 8)

    delta = Phi(-c) - e^epsilon Phi(-c - mu) = phi(c) (R(c) - R(c + mu)),

where R(x) = Phi(-x) / phi(x) is Mills' ratio. Gaussians compose: the squares of their mu add up.
"""

import math

import numpy as np

_HALF_LOG_2_PI = math.log(2 * math.pi) / 2
# Between these c, delta is 1 and 0 to double precision.
_SMALLEST, _LARGEST = -40.0, 40.0
# Below this mu, differences of Mills' ratios are integrals.
_SMALL = 0.1
_NODES = np.polynomial.legendre.leggauss(8)


def _log_mills(x: float) -> float:
    from scipy import special

    if x < 0:
        return float(special.log_ndtr(-x)) + x * x / 2 + _HALF_LOG_2_PI
    return math.log(special.erfcx(x / math.sqrt(2))) + math.log(math.pi / 2) / 2


def _log_delta(mu: float, c: float) -> float:
    if mu < _SMALL and c >= -_SMALL:
        return _log_small_delta(mu, c)
    mills = _log_mills(c)
    difference = -math.expm1(_log_mills(c + mu) - mills)
    if difference <= 0:
        return -math.inf
    return mills - c * c / 2 - _HALF_LOG_2_PI + math.log(difference)


def _log_small_delta(mu: float, c: float) -> float:
    """Returns log delta where the two Mills' ratios are nearly the same.

    Their difference is the integral of -R'(x) = 1 - x R(x) from c to c + mu.
    """
    from scipy import special

    nodes, weights = _NODES
    x = c + mu * (nodes + 1) / 2
    slopes = 1 - x * special.erfcx(x / math.sqrt(2)) * math.sqrt(math.pi / 2)
    return math.log(mu) - c * c / 2 - _HALF_LOG_2_PI + math.log(float(slopes @ weights) / 2)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns delta of N(mu, 1) and N(0, 1) at this epsilon.

    Guarantees:
        Relative error below 1e-8 where mu is above 1e-30 and delta above 1e-300.

    Args:
        mu: 1 / noise multiplier, positive.
        epsilon: At least 0.

    Example:
        >>> f"{gaussian_delta(1.0, 1.0):.6f}"
        '0.126937'
    """
    from scipy import special

    if epsilon == 0:
        return float(special.erf(mu / math.sqrt(8)))
    c = epsilon / mu - mu / 2
    if not _SMALLEST < c < _LARGEST:
        return 1.0 if c < 0 else 0.0
    return min(1.0, math.exp(_log_delta(mu, c)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the smallest epsilon of N(mu, 1) and N(0, 1) at this delta, the inverse of delta.

    Args:
        mu: 1 / noise multiplier, positive.
        delta: In (0, 1).
    """
    from scipy import optimize

    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = max(-mu / 2, _SMALLEST), _LARGEST
    target = math.log(delta)
    if _log_delta(mu, low) <= target:  # By rounding alone: delta at epsilon zero is above it.
        return mu * 1e-13
    c = optimize.brentq(lambda c: _log_delta(mu, c) - target, low, high, xtol=1e-14, rtol=1e-14)
    # From the side on which delta is not exceeded.
    return max(0.0, mu * (float(c) * (1 + 1e-13) + 1e-13 + mu / 2))
