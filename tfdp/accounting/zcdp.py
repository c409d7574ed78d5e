"""Zero-concentrated differential privacy (Bun and Steinke 2016, arXiv:1605.02065)."""

import math
from collections.abc import Callable

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.mechanisms import (
    BoundedRange,
    Concentrated,
    Mechanism,
    PureEpsilon,
    SampledGaussian,
)
from tfdp.accounting.renyi.conversion import delta_of_log_odds, epsilon_at_order, log_odds_of_delta
from tfdp.accounting.renyi.search import minimize_over_orders
from tfdp.accounting.unsampled import sampling_of
from tfdp.events import Event, UnsupportedEventError


class ZCDPAccountant(Accountant):
    """Adds up rho, where the Renyi divergence of every order a is at most rho a.

    A Gaussian with noise multiplier z has rho = 1 / (2 z^2), exactly. A pure mechanism has at most
    epsilon^2 / 2 (proposition 3.3), and one of bounded range epsilon^2 / 8 (Cesar and Rogers 2021,
    arXiv:2004.07223).

    Guarantees:
        Epsilon and delta are upper bounds: of all orders the best one, converted without loss
        (`tfdp.accounting.renyi.conversion`).

    Edge cases:
        There is no amplification by sampling: sampled mechanisms are refused, unless what they are
        on their sample is pure.

    Example:
        >>> from tfdp.events import GaussianSumEvent
        >>> accountant = ZCDPAccountant().compose(GaussianSumEvent(1.0, noise_stddev=4.0), count=16)
        >>> accountant.rho
        0.5
        >>> round(accountant.get_epsilon(1e-5), 3)
        4.728
    """

    takes_many_kinds = True
    prices = {
        SampledGaussian: lambda m: 0.5 / m.noise_multiplier / m.noise_multiplier,
        PureEpsilon: lambda m: m.epsilon * m.epsilon / 2,
        BoundedRange: lambda m: m.epsilon * m.epsilon / 8,
        Concentrated: lambda m: m.rho,
    }

    @property
    def rho(self) -> float:
        """Of everything composed so far.

        It is infinite where something has no privacy, a delta of its own, or a probability of
        failure (truncated samples, discrete noise).
        """
        if self._is_non_private() or self._fails():
            return math.inf
        return self._rho()

    def _rho(self) -> float:
        """Returns that of the mechanisms."""
        return math.fsum(n * self.prices[type(m)](m) for m, n in self._terms())

    def _priced(self, mechanism: Mechanism, event: Event) -> Mechanism:
        sampling = sampling_of(mechanism)
        if sampling is not None:
            raise UnsupportedEventError(
                f"{type(self).__name__} cannot price {sampling}, since zCDP has no amplification "
                f"by sampling: {event!r}. Use PRVAccountant, PLDAccountant or RDPAccountant."
            )
        return super()._priced(mechanism, event)

    def _best(self, value: Callable[[float, float], float], *, inverse: bool) -> float:
        """Returns the smallest of value(order, divergence)."""
        rho = self._rho()

        def values(orders: np.ndarray) -> np.ndarray:
            return np.array([value(order, rho * order) for order in orders.tolist()])

        return minimize_over_orders(values, inverse=inverse)[1]

    def _epsilon(self, delta: float) -> float:
        return self._best(lambda a, rdp: epsilon_at_order(a, rdp, delta), inverse=True)

    def _delta(self, epsilon: float) -> float:
        best = self._best(lambda a, rdp: log_odds_of_delta(a, rdp, epsilon), inverse=False)
        return delta_of_log_odds(best)
