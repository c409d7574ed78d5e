"""The moments accountant of Abadi et al. 2016 (arXiv:1607.00133), as it was published."""

import math

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.rdp import RDPAccountant, renyi_curve

# "We compute alpha(lambda) for a range of lambda"; their code takes the integers up to 32.
_MOMENTS = np.arange(1.0, 33.0)


class MomentsAccountant(Accountant):
    """Adds up log moments of the privacy loss, at integer orders lambda, and takes the tail bound.

    With R the ratio of a step's outputs for two neighbours (theorem 2, in both directions),

        alpha(lambda) = log E[R^lambda],
        delta = min over lambda of exp(alpha(lambda) - lambda epsilon).

    alpha(lambda) is lambda times the Renyi divergence of order lambda + 1, and exact.

    Guarantees:
        Epsilon and delta are upper bounds, never smaller than those of `RDPAccountant`, which looks
        at all orders and converts without loss. It is here for comparison with the literature.

    Example:
        Figure 2 of the paper, after 100 epochs:

        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> round(MomentsAccountant().compose(step, count=10_000).get_epsilon(1e-5), 2)
        1.26
    """

    takes_many_kinds = True
    prices = RDPAccountant.prices

    def get_log_moments(self) -> np.ndarray:
        """Returns alpha(1), ..., alpha(32) of everything composed so far.

        They are infinite where something has no privacy, a delta of its own, or a probability of
        failure (truncated samples, discrete noise).
        """
        if self._is_non_private() or self._fails():
            return np.full(_MOMENTS.shape, np.inf)
        return self._log_moments() if self._terms() else np.zeros(_MOMENTS.shape)

    def _log_moments(self) -> np.ndarray:
        """Returns those of the mechanisms, of which there is one at least."""
        return _MOMENTS * renyi_curve(self._terms())(1 + _MOMENTS)

    def _epsilon(self, delta: float) -> float:
        return float(np.min((self._log_moments() - math.log(delta)) / _MOMENTS))

    def _delta(self, epsilon: float) -> float:
        log_delta = float(np.min(self._log_moments() - _MOMENTS * epsilon))
        return math.exp(min(0.0, log_delta))
