"""Accounting by privacy loss distributions, computed by dp-accounting."""

import math
from typing import TYPE_CHECKING

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.normal_form import SampledGaussian
from tfdp.accounting.rdp import DEFAULT_ORDERS
from tfdp.accounting.rdp_gaussian import rdp_sampled_gaussian
from tfdp.ledger.events import real_number

if TYPE_CHECKING:
    from dp_accounting.pld import privacy_loss_distribution

# Grids of more points take minutes; where one would be longer the interval grows.
_MOST_POINTS = 2**20
# Log probability of the losses that dp-accounting leaves out of its grid.
_LOG_TAIL = 50.0

_Terms = list[tuple[SampledGaussian, int]]


def _merge_unsampled(terms: _Terms) -> _Terms:
    """Returns the terms with all Gaussians that see everything as one: their 1/z^2 add up."""
    sampled = [(m, n) for m, n in terms if m.sampling_probability != 1]
    inverses = [math.sqrt(n) / m.noise_multiplier for m, n in terms if m.sampling_probability == 1]
    return [*sampled, (SampledGaussian(1.0, 1 / math.hypot(*inverses)), 1)] if inverses else sampled


def _largest_loss(terms: _Terms) -> float:
    """Returns a bound that the privacy loss exceeds with probability exp(-_LOG_TAIL) at most."""
    orders = np.array(DEFAULT_ORDERS, dtype=np.float64)
    rdp = sum(n * rdp_sampled_gaussian(*m, orders) for m, n in terms)
    return float(np.min(rdp + _LOG_TAIL / (orders - 1)))


class PLDAccountant(Accountant):
    """Composes privacy loss distributions on a grid of losses: the tightest epsilon we report.

    Guarantees:
        Losses are discretized so that epsilon and delta are upper bounds (Doroshenko et al. 2022,
        arXiv:2207.04380); for DP-SGD's usual parameters they are tight to three digits and more.

    Edge cases:
        Where the losses are so large that the grid would have more than 2^20 points, its interval
        is wider than asked for: still an upper bound, a little less tight. At a delta below about
        1e-13, which is what the grid leaves out, epsilon is infinite.

    Args:
        value_discretization_interval: Distance of the losses on the grid, positive.

    Raises:
        ValueError: the interval is not positive and finite.

    Example:
        >>> from tfdp.ledger import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> round(PLDAccountant().compose(step, count=10_000).get_epsilon(1e-5), 3)
        0.947
    """

    def __init__(self, value_discretization_interval: float = 1e-4):
        super().__init__()
        self._interval = real_number(
            "value_discretization_interval",
            value_discretization_interval,
            minimum=0,
            inclusive=False,
        )
        self._composed: tuple[_Terms, privacy_loss_distribution.PrivacyLossDistribution] | None = (
            None
        )

    def _distribution(self, terms: _Terms) -> "privacy_loss_distribution.PrivacyLossDistribution":
        """Returns the distribution of the terms: at least one, and all with noise."""
        if self._composed is not None and self._composed[0] == terms:
            return self._composed[1]
        from dp_accounting.pld import privacy_loss_distribution

        merged = _merge_unsampled(terms)
        interval = max(self._interval, 2 * _largest_loss(merged) / _MOST_POINTS)
        steps = [
            privacy_loss_distribution.from_gaussian_mechanism(
                standard_deviation=mechanism.noise_multiplier,
                sampling_prob=mechanism.sampling_probability,
                value_discretization_interval=interval,
            ).self_compose(count)
            for mechanism, count in merged
        ]
        total = steps[0]
        for step in steps[1:]:
            total = total.compose(step)
        self._composed = (terms, total)
        return total

    def _epsilon(self, delta: float) -> float:
        terms = self._terms()
        if not terms:
            return 0.0
        if any(mechanism.noise_multiplier == 0 for mechanism, _ in terms):
            return math.inf
        return float(self._distribution(terms).get_epsilon_for_delta(delta))

    def _delta(self, epsilon: float) -> float:
        terms = self._terms()
        if not terms:
            return 0.0
        if any(mechanism.noise_multiplier == 0 for mechanism, _ in terms):
            return 1.0
        return min(1.0, max(0.0, float(self._distribution(terms).get_delta_for_epsilon(epsilon))))
