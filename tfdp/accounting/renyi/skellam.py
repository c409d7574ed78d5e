"""Renyi divergences of Skellam noise (Agarwal, Kairouz, Liu 2021, arXiv:2110.04995).

Let an integer vector be moved by v, and have Skellam noise of the variance m on every coordinate.
At whole orders a above one (theorem 3.5 and its corollary for vectors),

    D_a <= a |v|_2^2 / (2 m) + min(((2 a - 1) |v|_2^2 + 6 |v|_1) / (4 m^2), 3 |v|_1 / (2 m)).

(a - 1) D_a is a logarithm of moments: convex in a, and zero at one. Between two whole orders it is
below the straight line between bounds there.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tfdp.accounting.mechanisms import SkellamNoise


def at_whole_orders(mechanism: SkellamNoise, orders: np.ndarray) -> np.ndarray:
    """Returns the bound of (a - 1) D_a at orders a that are whole; zero at one."""
    m, l1 = mechanism.variance, mechanism.l1_norm
    # Relative to the noise, so that no square overflows.
    square = mechanism.l2_norm / np.sqrt(m) * (mechanism.l2_norm / np.sqrt(m))
    few = ((2 * orders - 1) * square + 6 * (l1 / m)) / (4 * m)
    return (orders - 1) * (orders * square / 2 + np.minimum(few, 1.5 * (l1 / m)))


def skellam_curve(
    mechanisms: Sequence[SkellamNoise], counts: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the divergence of all of them together, as a function of orders."""

    def one(mechanism: SkellamNoise, orders: np.ndarray) -> np.ndarray:
        below = np.floor(orders)
        share = orders - below
        low, high = at_whole_orders(mechanism, below), at_whole_orders(mechanism, below + 1)
        return (low * (1 - share) + high * share) / (orders - 1) * (1 + 1e-12)

    return lambda orders: counts @ np.array([one(mechanism, orders) for mechanism in mechanisms])
