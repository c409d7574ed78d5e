"""Renyi differential privacy of the best of a random number of runs.

Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy",
arXiv:2110.03620. Every run has the divergence rdp(a) of order a, at most.

- K from the truncated negative binomial distribution D(eta, gamma), theorem 2: for every b >= 1

      rdp(a) + (1 + eta) ((1 - 1/b) rdp(b) + log(1/gamma) / b) + log(E[K]) / (a - 1).

- K from a Poisson distribution of mean mu, theorem 6: if a run is (e, delta)-private with
  exp(e) <= 1 + 1 / (a - 1),

      rdp(a) + mu delta + log(mu) / (a - 1).
"""

import math
from collections.abc import Callable

import numpy as np

from tfdp.accounting.renyi.conversion import delta_of_log_odds, log_odds_of_delta
from tfdp.accounting.renyi.search import minimize_over_orders

_Curve = Callable[[np.ndarray], np.ndarray]

# A shape this near to zero is computed as the logarithmic distribution, to which the mean of the
# others converges; the relative difference is below the shape times the logarithm of gamma.
_LOGARITHMIC = 1e-12


def log_mean_runs(shape: float, success_probability: float) -> float:
    """Returns log(E[K]) of the distribution D(shape, success_probability).

    Example:
        >>> round(math.exp(log_mean_runs(1.0, 0.1)), 9)
        10.0
    """
    eta, gamma = shape, success_probability
    log_gamma = math.log(gamma)
    if abs(eta) < _LOGARITHMIC:
        # Of eta / (1 - gamma^eta) the limit, rounded up.
        inverse = (1 + 2 * _LOGARITHMIC * (1 - log_gamma)) / -log_gamma
    else:
        inverse = eta / -math.expm1(eta * log_gamma)
    return math.log(inverse) + math.log1p(-gamma) - log_gamma


def best_of_runs(run: _Curve, shape: float, success_probability: float) -> _Curve:
    """Returns the divergence of the best of K runs, K from D(shape, success_probability).

    Args:
        run: The divergence of any run, at most.
        shape: eta, above -1.
        success_probability: gamma, in (0, 1).
    """
    log_inverse = -math.log(success_probability)

    def beyond(b: np.ndarray) -> np.ndarray:
        return (1 - 1 / b) * run(b) + log_inverse / b

    # Any b gives a bound, also one that the search takes wrongly for the best.
    _, least = minimize_over_orders(beyond, inverse=False)
    constant = (1 + shape) * least
    log_mean = max(0.0, log_mean_runs(shape, success_probability))
    return lambda orders: run(orders) + constant + log_mean / (orders - 1)


def best_of_poisson_runs(run: _Curve, mean_runs: float) -> _Curve:
    """Returns the divergence of the best of K runs, K from a Poisson distribution.

    Args:
        run: The divergence of any run, at most.
        mean_runs: mu, at least 1.
    """

    def delta(epsilon: float) -> float:
        def values(orders: np.ndarray) -> np.ndarray:
            pairs = zip(orders.tolist(), run(orders).tolist(), strict=True)
            return np.array([log_odds_of_delta(a, rdp, epsilon) for a, rdp in pairs])

        return delta_of_log_odds(minimize_over_orders(values, inverse=False)[1])

    def total(orders: np.ndarray) -> np.ndarray:
        deltas = np.array([delta(math.log1p(1 / (a - 1))) for a in orders.tolist()])
        return run(orders) + mean_runs * deltas + math.log(mean_runs) / (orders - 1)

    return total
