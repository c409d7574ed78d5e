"""Accounting by privacy loss distributions, composed by dp-accounting."""

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.losses.grid import GridPMF, round_losses
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.mechanisms import Mechanism
from tfdp.accounting.rdp import renyi_curve
from tfdp.accounting.unsampled import merge_unsampled, only_gaussian
from tfdp.events.arguments import real_number

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

# Grids of more points take minutes; where one would be longer the interval grows.
MOST_POINTS = 2**20
# Log probability of the losses of a step, and of all steps, that may be beyond the grid.
_LOG_TAIL = -50.0
# Orders, less one, by which the largest loss is bounded.
_EXPONENTS = np.geomspace(0.01, 1000.0, 40)

_Terms = list[tuple[Any, int]]


def largest_loss(terms: _Terms) -> float:
    """Returns a bound that the privacy loss exceeds with probability exp(_LOG_TAIL) at most."""
    return float(np.min(renyi_curve(terms)(1 + _EXPONENTS) - _LOG_TAIL / _EXPONENTS))


def _pmf(grid: GridPMF) -> "pld_pmf.DensePLDPmf":
    from dp_accounting.pld import pld_pmf

    return pld_pmf.DensePLDPmf(
        grid.interval, grid.first, grid.atoms, grid.infinite, pessimistic_estimate=True
    )


@functools.lru_cache(maxsize=64)
def one_step(
    mechanism: Mechanism, interval: float
) -> "privacy_loss_distribution.PrivacyLossDistribution":
    """Returns what is discretized as dp-accounting does, for all the grid at once."""
    from dp_accounting.pld import privacy_loss_distribution

    pairs = PAIRS[type(mechanism)](mechanism)
    return privacy_loss_distribution.PrivacyLossDistribution(
        *(_pmf(round_losses(pair, interval, _LOG_TAIL)) for pair in pairs)
    )


def composed(step: Any, count: int) -> "privacy_loss_distribution.PrivacyLossDistribution":
    """Returns the distribution of `count` steps like this one."""
    return step if count == 1 else step.self_compose(count)


class PLDAccountant(Accountant):
    """Composes privacy loss distributions on a fixed grid of losses.

    Guarantees:
        Losses are discretized so that epsilon and delta are upper bounds (Doroshenko et al. 2022,
        arXiv:2207.04380); for DP-SGD's usual parameters they are tight to three digits and more.
        `PRVAccountant` rounds losses in the same way, and also bounds what that costs.

    Edge cases:
        Gaussians without sampling are priced in closed form. Where the losses are so large that the
        grid would have more than 2^20 points, its interval is wider than asked for: still an upper
        bound, a little less tight. At a delta below about 1e-13 times the number of distinct
        mechanisms epsilon is infinite: dp-accounting gives up tails of 1e-15.

    Args:
        value_discretization_interval: Distance of the losses on the grid; time grows with its
            inverse.

    Raises:
        ValueError: the interval is not positive and finite.
        TypeError: it is not a number.

    Example:
        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> round(PLDAccountant().compose(step, count=10_000).get_epsilon(1e-5), 3)
        0.947
    """

    prices = PAIRS

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
        interval = max(self._interval, 2 * largest_loss(terms) / MOST_POINTS)
        steps = [composed(one_step(mechanism, interval), count) for mechanism, count in terms]
        # Of many, neighbours are composed, so that grids grow late.
        while len(steps) > 1:
            pairs = zip(steps[::2], steps[1::2], strict=False)
            rest = steps[len(steps) // 2 * 2 :]
            steps = [*(one.compose(other) for one, other in pairs), *rest]
        self._composed = (terms, steps[0])
        return steps[0]

    def _epsilon(self, delta: float) -> float:
        terms = merge_unsampled(self._terms())
        if (mu := only_gaussian(terms)) is not None:
            return gaussian_epsilon(mu, delta)
        return float(self._distribution(terms).get_epsilon_for_delta(delta))

    def _delta(self, epsilon: float) -> float:
        terms = merge_unsampled(self._terms())
        if (mu := only_gaussian(terms)) is not None:
            return gaussian_delta(mu, epsilon)
        return min(1.0, max(0.0, float(self._distribution(terms).get_delta_for_epsilon(epsilon))))
