"""Renyi differential privacy of the Gaussian mechanism on samples of fixed size, replace-one.

A sample of n of N units, drawn without replacement, holds the replaced unit with probability
q = n / N. If one unit of the sample is replaced, the worst outputs are P = N(1, z^2) and
Q = N(0, z^2).
At every epsilon of at least zero neighbours' outputs are then no further apart than (1 - q) Q + q P
and Q (Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, theorem 9). At every epsilon below zero
they are no further apart than P and (1 - q) P + q Q, which is the same with neighbours exchanged
(Zhu, Dong and Wang 2022, arXiv:2106.08567). One pair of distributions has both: the likelihood
ratio

    R(x) = 1 + q (exp((2x - 1) / (2z^2)) - 1)    of the former where x > 1/2,

its mirror image of the latter where x < 1/2, and loss zero with all remaining probability. So the
divergence of that pair bounds those of all neighbours. With L = log R its moment
(`tfdp.accounting.renyi.moments`) is

    A - 1 = int_{1/2}^inf Q ( R ((a - 1) psi(-L) + psi((a - 1) L))
                              + (a - 1) psi(L) + psi(-(a - 1) L) ).

It is below the bound of Wang, Balle and Kasiviswanathan 2019 (arXiv:1808.00087), which for small q
is four times as large.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tfdp.accounting.mechanisms import FixedSizeGaussian
from tfdp.accounting.renyi.gaussian import LARGEST_MULTIPLIER, log_likelihood_ratio
from tfdp.accounting.renyi.moments import log_sum_psi

# The rule of Gauss and Legendre is applied in intervals of this width, relative to the distance
# over which the integrand changes.
_NODES = np.polynomial.legendre.leggauss(24)
_WIDTH = 1.5
_TAIL = 9.5
# If an integral would need more points than this, the sample is priced as a full batch.
_MOST_POINTS = 2**22


class _Integral:
    """The integral of one mechanism, on points that serve all orders up to a largest one."""

    def __init__(self, q: float, z: float):
        self._q, self._z = q, min(z, LARGEST_MULTIPLIER)
        self._largest_order = 0.0

    def _panels(self, order: float) -> float:
        range_ = max(order, 2.0) + _TAIL * self._z
        return range_ / _WIDTH / self._z / min(1.0, 2 * self._z)

    def _prepare(self, order: float) -> None:
        number = math.ceil(self._panels(order))
        width = (max(order, 2.0) + _TAIL * self._z) / number
        nodes, weights = _NODES
        x = np.ravel(0.5 + width * (np.arange(number)[:, np.newaxis] + (nodes + 1) / 2))
        log_weights = np.log(np.tile(width / 2 * weights / self._z, number))
        self._losses = log_likelihood_ratio(self._q, self._z, x)
        without = log_weights - (x / self._z) ** 2 / 2 - math.log(2 * math.pi) / 2
        self._without, self._with = without, without + self._losses
        self._largest_order = order

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            everything = orders / 2 / self._z / self._z
            largest = float(orders.max())
            if len(_NODES[0]) * self._panels(largest) > _MOST_POINTS:
                return everything
        if largest > self._largest_order:
            self._prepare(max(2 * largest, 16.0) if largest < 1000 else largest)
        a = (orders - 1)[:, np.newaxis]
        parts = [
            np.log(orders - 1) + log_sum_psi(self._with, self._losses, -1.0),
            log_sum_psi(self._with, self._losses, a),
            np.log(orders - 1) + log_sum_psi(self._without, self._losses, 1.0),
            log_sum_psi(self._without, self._losses, -a),
        ]
        log_a_minus_1 = np.logaddexp.reduce(parts)
        return np.minimum(np.logaddexp(0.0, log_a_minus_1) / (orders - 1), everything)


def rdp_of_replacement(q: float, z: float) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the divergence of the pair as a function of orders: with probability q one unit of a
    sample is another one.
    """
    return _Integral(q, z).rdp


def rdp_fixed_size_gaussian(
    sample_size: int, population_size: int, noise_multiplier: float, orders: np.ndarray
) -> np.ndarray:
    """Returns an upper bound of the divergence of one step at every order.

    Guarantees:
        Neighbours are data sets of population_size records of which one has another value; a
        replacement in the sample moves sums by at most 1, and the noise has standard deviation
        `noise_multiplier`. The integral is exact to a relative 1e-10.

    Edge cases:
        Where an order is so large, or the noise so small, that the integral would take more than
        four million points, a sample is priced as everything is, a / (2z^2).

    Args:
        sample_size: n, below population_size.
        population_size: N.
        noise_multiplier: z, positive. Relative to *twice* the norm bound of a record.
        orders: Float64 vector of orders, all above 1 and finite.

    Returns:
        Float64 vector as long as `orders`.
    """
    integral = _Integral(sample_size / population_size, noise_multiplier)
    return integral.rdp(np.asarray(orders, dtype=np.float64))


def fixed_size_gaussian_curve(
    mechanisms: Sequence[FixedSizeGaussian], counts: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the total divergence of `counts[i]` times `mechanisms[i]` as a function of orders."""
    integrals = [
        _Integral(m.sample_size / m.population_size, m.noise_multiplier) for m in mechanisms
    ]
    return lambda orders: counts @ np.array([integral.rdp(orders) for integral in integrals])
