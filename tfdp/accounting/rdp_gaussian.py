"""Renyi differential privacy of the Poisson-sampled Gaussian mechanism, at every order above one.

With sampling probability q and noise multiplier z the divergence is (Mironov, Talwar and Zhang
2019, arXiv:1908.10530, theorem 4 and 5)

    rdp(a) = log(A) / (a - 1)
    A = E_{x ~ N(0, z^2)}[(1 + u(x))^a]
    u(x) = q (exp((2x - 1) / (2z^2)) - 1).

Where privacy is good, A is 1 plus something tiny, so A - 1 is computed, from terms that are all
positive:

- At integer orders, sum_{k=2}^a C(a, k) (1 - q)^(a - k) q^k (exp((k^2 - k) / (2z^2)) - 1).
- At the others E[u] = 0 gives A - 1 = E[(1 + u)^a - 1 - a u], and with L = log(1 + u) and
  psi(y) = e^y - 1 - y

      (1 + u)^a - 1 - a u = (1 + u) ((a - 1) psi(-L) + psi((a - 1) L)),

  integrated by the trapezoidal rule, whose error falls exponentially for analytic functions
  (Trefethen and Weideman 2014, SIAM Review 56:385).
"""

import math

import numpy as np

# Terms smaller than exp(-_NEGLIGIBLE) relative to the result are left out.
_NEGLIGIBLE = 45.0
# Half the width, in units of z, of what is kept of a Gaussian: exp(-12^2 / 2) < exp(-_NEGLIGIBLE).
_TAIL = 12.0
# psi(y) = y^2/2 (1 + y/3 + y^2/12 + ...); at |y| < 1 these terms give it to the last bit.
_PSI_SERIES = [2.0 / math.factorial(k + 2) for k in range(18)]
# Smaller probabilities are priced as this one, which costs more.
_SMALLEST_PROBABILITY = 1e-100


def _log_sum_exp(terms: np.ndarray) -> float:
    largest = float(terms.max())
    if not math.isfinite(largest):
        return largest
    return largest + math.log(np.sum(np.exp(terms - largest)))


def _log_expm1(x: np.ndarray) -> np.ndarray:
    """Returns log(e^x - 1) for x > 0."""
    small = np.minimum(x, 1.0)
    return np.where(x > 1.0, x + np.log1p(-np.exp(-np.maximum(x, 1.0))), np.log(np.expm1(small)))


def _log_psi(y: np.ndarray) -> np.ndarray:
    """Returns log(e^y - 1 - y), minus infinity at zero."""
    near = np.clip(y, -1.0, 1.0)
    series = np.polynomial.polynomial.polyval(near, _PSI_SERIES)
    result = 2 * np.log(np.abs(near)) - math.log(2) + np.log(series)
    above, below = y > 1.0, y < -1.0
    result[above] = y[above] + np.log1p(-(1 + y[above]) * np.exp(-y[above]))
    result[below] = np.log(np.expm1(y[below]) - y[below])
    return result


def _log_a_minus_1_integer(q: float, z: float, order: int) -> float:
    k = np.arange(1, order + 1, dtype=np.float64)
    log_binomial = np.cumsum(np.log((order - k + 1) / k))[1:]
    k = k[1:]
    moments = _log_expm1(k * (k - 1) / 2 / z / z)
    return _log_sum_exp(log_binomial + (order - k) * math.log1p(-q) + k * math.log(q) + moments)


def _grid(q: float, z: float, largest_order: float) -> tuple[np.ndarray, float]:
    """Returns the points x, and their distance, for all orders up to the largest."""
    # The error of step h is exp(c^2 / (2z^2) - 2 pi c / h) for the best c below pi z^2, where 1 + u
    # first vanishes above or below the real axis. Both cases below make it exp(-_NEGLIGIBLE).
    pi_z = math.pi * z
    if pi_z >= math.sqrt(2 * _NEGLIGIBLE):
        step = pi_z * math.sqrt(2 / _NEGLIGIBLE)
    else:
        step = 2 * pi_z**2 / (_NEGLIGIBLE + pi_z**2 / 2)
    # For every order the mass lies between 0 and max(order, 2), as far as Gaussian tails.
    low, high = -_TAIL * z, max(largest_order, 2.0) + _TAIL * z
    return low + step * np.arange(math.ceil((high - low) / step) + 1), step


def _log_one_plus_u(q: float, z: float, x: np.ndarray) -> np.ndarray:
    t = (2 * x - 1) / 2 / z / z
    small = np.minimum(t, 700.0)
    far = np.logaddexp(math.log1p(-q), math.log(q) + np.maximum(t, 700.0))
    return np.where(t > 700.0, far, np.log1p(q * np.expm1(small)))


def _log_a_minus_1_integral(q: float, z: float, orders: np.ndarray) -> np.ndarray:
    x, step = _grid(q, z, orders.max())
    log_1_plus_u = _log_one_plus_u(q, z, x)
    log_density = -((x / z) ** 2) / 2 - math.log(z) - math.log(2 * math.pi) / 2 + math.log(step)
    log_weight = log_density + log_1_plus_u
    log_psi = _log_psi(-log_1_plus_u)
    result = np.empty_like(orders)
    for i, order in enumerate(orders):
        powers = _log_psi((order - 1) * log_1_plus_u)
        result[i] = _log_sum_exp(log_weight + np.logaddexp(math.log(order - 1) + log_psi, powers))
    return result


def _peaks_are_apart(q: float, z: float) -> bool:
    """Whether to double precision 1 + u is 1 - q near x = 0, q exp((2x - 1) / (2z^2)) near a."""
    return (0.5 - _TAIL * z) / z / z > _NEGLIGIBLE - math.log(q) - math.log1p(-q)


def _log_a_minus_1_apart(q: float, z: float, orders: np.ndarray) -> np.ndarray:
    # A = q^a exp(a (a - 1) / (2z^2)) + (1 - q)^a. Of the 1 that is taken from it, the first term
    # takes q and the second 1 - q.
    at_a = math.log(q) + _log_expm1((orders - 1) * (math.log(q) + orders / 2 / z / z))
    at_zero = math.log1p(-q) + np.log(-np.expm1((orders - 1) * math.log1p(-q)))
    return at_a + np.log1p(-np.exp(at_zero - at_a))


def rdp_sampled_gaussian(
    sampling_probability: float, noise_multiplier: float, orders: np.ndarray
) -> np.ndarray:
    """Returns the Renyi divergence of one step at every order.

    Guarantees:
        Neighbours are data sets that differ in one record, added or removed; sums move by at most 1
        and the noise has standard deviation `noise_multiplier`. The relative error is below 1e-12,
        whether the order is an integer or not.

    Edge cases:
        sampling_probability 1 is a / (2z^2) exactly; noise_multiplier 0 is infinity. Work grows
        with the largest order, and at fractional orders with 1 / noise_multiplier^2 as long as that
        is below about 1000.

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: z, at least 0.
        orders: Float64 vector of orders, all above 1 and finite.

    Returns:
        Float64 vector as long as `orders`.
    """
    orders = np.asarray(orders, dtype=np.float64)
    q, z = max(sampling_probability, _SMALLEST_PROBABILITY), noise_multiplier
    if z < 1e-150:
        return np.full(orders.shape, np.inf)
    z = min(z, 1e150)
    if q == 1:
        return orders / 2 / z / z
    whole = orders == np.floor(orders)
    log_a_minus_1 = np.empty(orders.shape)
    # The logarithm of zero is meant where a term underflows.
    with np.errstate(divide="ignore", under="ignore"):
        log_a_minus_1[whole] = [_log_a_minus_1_integer(q, z, int(order)) for order in orders[whole]]
        if not whole.all():
            fractional = _log_a_minus_1_apart if _peaks_are_apart(q, z) else _log_a_minus_1_integral
            log_a_minus_1[~whole] = fractional(q, z, orders[~whole])
    return np.logaddexp(0.0, log_a_minus_1) / (orders - 1)
