"""Accounting by Renyi differential privacy (Mironov 2017, arXiv:1702.07476)."""

import math
from collections.abc import Iterable

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.normal_form import SampledGaussian
from tfdp.accounting.rdp_gaussian import rdp_sampled_gaussian
from tfdp.ledger.events import real_number

DEFAULT_ORDERS = (
    1.01,
    1.02,
    1.05,
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 65),
    *(80, 96, 128, 192, 256, 512, 1024),
)


def epsilon_from_rdp(orders: np.ndarray, rdp: np.ndarray, delta: float) -> float:
    """Returns the smallest epsilon that some order gives for this delta.

    For every order a, epsilon = rdp + log(1 - 1/a) - log(delta a) / (a - 1) (Canonne, Kamath and
    Steinke 2020, arXiv:2004.00010, proposition 12). Where the total variation distance is at most
    delta, epsilon is zero.
    """
    if delta >= _total_variation_bound(rdp):
        return 0.0
    epsilons = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(epsilons)))


def delta_from_rdp(orders: np.ndarray, rdp: np.ndarray, epsilon: float) -> float:
    """Returns the smallest delta that some order gives for this epsilon.

    It is the inverse of `epsilon_from_rdp`.
    """
    logs = (orders - 1) * (rdp - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(_total_variation_bound(rdp), math.exp(min(0.0, float(np.min(logs)))))


def _total_variation_bound(rdp: np.ndarray) -> float:
    # Bretagnolle and Huber 1979: TV <= sqrt(1 - exp(-KL)), and KL is at most the divergence of any
    # order above 1.
    return math.sqrt(-math.expm1(-float(np.min(rdp))))


class RDPAccountant(Accountant):
    """Adds up Renyi divergences at many orders, and gives the epsilon of the best one.

    Guarantees:
        The divergence of every step is exact at every order (see `tfdp.accounting.rdp_gaussian`);
        the conversion to epsilon is what loses 7 to 30 % against privacy loss distributions.

    Args:
        orders: Orders above 1, whole or not; None for `DEFAULT_ORDERS`. An order more can only
            lower epsilon.

    Raises:
        ValueError: there are no orders, or one is not finite and above 1.
        TypeError: an order is not a number.

    Example:
        >>> from tfdp.ledger import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> round(RDPAccountant().compose(step, count=10_000).get_epsilon(1e-5), 3)
        1.035
    """

    def __init__(self, orders: Iterable[float] | None = None):
        super().__init__()
        orders = DEFAULT_ORDERS if orders is None else tuple(orders)
        if not orders:
            raise ValueError(
                f"orders must hold at least one order above 1. Received: orders={orders!r}."
            )
        self._orders = np.array(
            [real_number("orders", order, minimum=1, inclusive=False) for order in orders]
        )
        self._cache: dict[SampledGaussian, np.ndarray] = {}

    @property
    def orders(self) -> np.ndarray:
        """Float64 vector of the orders."""
        return self._orders.copy()

    @property
    def rdp(self) -> np.ndarray:
        """Float64 vector, at every order, of the divergence of everything composed so far."""
        total = np.zeros(self._orders.shape)
        for mechanism, count in self._terms():
            total += count * self._step(mechanism)
        return total

    def _step(self, mechanism: SampledGaussian) -> np.ndarray:
        if mechanism not in self._cache:
            self._cache[mechanism] = rdp_sampled_gaussian(*mechanism, self._orders)
        return self._cache[mechanism]

    def _epsilon(self, delta: float) -> float:
        return epsilon_from_rdp(self._orders, self.rdp, delta)

    def _delta(self, epsilon: float) -> float:
        return delta_from_rdp(self._orders, self.rdp, epsilon)
