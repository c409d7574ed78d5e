"""Accounting by privacy loss distributions, composed by dp-accounting."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.losses.grid import GridPMF, round_losses
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.losses.proven import proven_delta, proven_epsilon
from tfdp.accounting.losses.transforms import Rounded, of_one, of_power, of_product
from tfdp.accounting.losses.window import delta_bound, has_grid
from tfdp.accounting.mechanisms import Mechanism
from tfdp.accounting.rdp import epsilon_of_curve, renyi_curve
from tfdp.accounting.unsampled import inclusion_probability, merge_unsampled, only_gaussian
from tfdp.events.arguments import real_number

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

# Grids of more points take minutes; where one would be longer the interval grows.
MOST_POINTS = 2**20
# Larger epsilons are left to Renyi divergences.
LARGEST_EPSILON = 1e4
# What is composed has at most so many, in all directions together.
_MOST_COMPOSED_POINTS = 2**24
# The power of a transform loses all digits where there are many more.
_MOST_EQUAL_STEPS = 10**9
# The tail that dp-accounting gives up where it composes equal steps.
_GIVEN_UP = 1e-15
# With a smaller probability of a finite loss no epsilon is finite, and dp-accounting gives all of
# that up as a tail, and fails.
_LEAST_LOG_FINITE = math.log(1e-9)
# Where the rounding of transforms may be more of delta than this, proven bounds are asked, too.
_SMALL_SHARE = 0.01
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


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step, discretized as dp-accounting does, for all the grid at once.

    Attributes:
        distribution: Of its losses, in every direction.
        atoms: The probabilities of finite losses, a vector for every direction.
    """

    distribution: "privacy_loss_distribution.PrivacyLossDistribution"
    atoms: tuple[np.ndarray, ...]


@functools.lru_cache(maxsize=64)
def one_step(mechanism: Mechanism, interval: float) -> Step:
    """Returns the step on a grid of this interval."""
    from dp_accounting.pld import privacy_loss_distribution

    pairs = PAIRS[type(mechanism)](mechanism)
    grids = [round_losses(pair, interval, _LOG_TAIL) for pair in pairs]
    distribution = privacy_loss_distribution.PrivacyLossDistribution(*map(_pmf, grids))
    return Step(distribution, tuple(grid.atoms for grid in grids))


@functools.lru_cache(maxsize=64)
def _lengths(step: Step, count: int) -> tuple[int, ...]:
    """Returns how many losses so many steps have in every direction."""
    from dp_accounting.pld import common

    if count == 1:
        return tuple(map(len, step.atoms))
    bounds = [common.compute_self_convolve_bounds(a, count, _GIVEN_UP) for a in step.atoms]
    return tuple(high - low + 1 for low, high in bounds)


class Composed(NamedTuple):
    """The distribution of several steps, as dp-accounting computed it.

    Attributes:
        distribution: Of the sum of losses, in every direction.
        rounded: What rounding has made of it, in both directions.
    """

    distribution: "privacy_loss_distribution.PrivacyLossDistribution"
    rounded: tuple[Rounded, Rounded]

    @property
    def error(self) -> float:
        """Delta may be larger by this than what the distribution says."""
        return max(rounded.error for rounded in self.rounded)

    def compose(self, other: "Composed") -> "Composed":
        """Returns the distribution of the steps of both."""
        (one, another), (more, others) = self.rounded, other.rounded
        return Composed(
            self.distribution.compose(other.distribution),
            (of_product(one, more), of_product(another, others)),
        )


def composed(step: Step, count: int) -> Composed:
    """Returns the distribution of `count` steps like this one."""
    if count == 1:
        rounded = [of_one(atoms) for atoms in step.atoms]
        return Composed(step.distribution, (rounded[0], rounded[-1]))
    lengths = _lengths(step, count)
    rounded = [of_power(a, count, n) for a, n in zip(step.atoms, lengths, strict=True)]
    return Composed(step.distribution.self_compose(count), (rounded[0], rounded[-1]))


def fits(steps: Sequence[tuple[Step, int]]) -> bool:
    """Whether dp-accounting can compose so many steps of every kind in bounded memory."""
    points, log_finite = 0, 0.0
    for step, count in steps:
        finite = min(float(atoms.sum()) for atoms in step.atoms)
        log_finite += count * math.log(finite) if finite else -math.inf
        if count > _MOST_EQUAL_STEPS or log_finite < _LEAST_LOG_FINITE:
            return False
        points += sum(_lengths(step, count))
    return points <= _MOST_COMPOSED_POINTS


class PLDAccountant(Accountant):
    """Composes privacy loss distributions on a fixed grid of losses.

    Guarantees:
        Losses are discretized so that epsilon and delta are upper bounds (Doroshenko et al. 2022,
        arXiv:2207.04380); for DP-SGD's usual parameters they are tight to three digits and more.
        `PRVAccountant` rounds losses in the same way, and also bounds what that costs. The answer
        includes a bound on what the transforms of dp-accounting lose to rounding
        (`tfdp.accounting.losses.transforms`; Higham 2002, Accuracy and Stability of Numerical
        Algorithms, chapter 24): of delta 1e-11 to 1e-9 for 1000 to 20,000 steps, and 1e-7 for a
        million. Where that is more than a hundredth of delta, the answer is the smallest of this
        one and of the proven bounds of `PRVAccountant` and of Renyi divergences. So at a delta
        below about 1e-8 it is no second opinion.

    Edge cases:
        Gaussians without sampling are priced in closed form. If the losses are so large that the
        grid would have more than 2^20 points, then its interval is wider than asked for. The result
        is still an upper bound, but a little less tight. Epsilon is what Renyi divergences give if
        losses are too large or too small for any grid, or steps are too many.

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
    computes_distributions = True
    is_predicted = True

    def __init__(self, value_discretization_interval: float = 1e-4):
        super().__init__()
        self._interval = real_number(
            "value_discretization_interval",
            value_discretization_interval,
            minimum=0,
            inclusive=False,
        )
        self._composed: tuple[_Terms, Composed] | None = None

    def growing(self) -> Accountant:
        return GrowingPLDAccountant(self._interval)

    def __repr__(self) -> str:
        return f"PLDAccountant(value_discretization_interval={self._interval})"

    def _distribution(self, terms: _Terms) -> Composed | None:
        """Returns the distribution of the terms: at least one, and all with noise.

        It is None where losses are too large or too small for a grid, or too many to be on one.
        """
        if self._composed is not None and self._composed[0] == terms:
            return self._composed[1]
        interval = max(self._interval, 2 * largest_loss(terms) / MOST_POINTS)
        if not has_grid(renyi_curve(terms), LARGEST_EPSILON):
            return None
        single = [(one_step(mechanism, interval), count) for mechanism, count in terms]
        if not fits(single):
            return None
        steps = [composed(step, count) for step, count in single]
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
        found = self._distribution(terms)
        epsilon = math.inf
        if found is not None and found.error < delta:
            epsilon = float(found.distribution.get_epsilon_for_delta(delta - found.error))
            epsilon = math.inf if math.isnan(epsilon) else epsilon
            if epsilon < math.inf and found.error <= _SMALL_SHARE * delta:
                return epsilon
        if inclusion_probability(terms) <= delta:
            return 0.0
        renyi = renyi_curve(terms)
        epsilon = min(epsilon, epsilon_of_curve(renyi, delta))
        return epsilon if found is None else min(epsilon, proven_epsilon(terms, renyi, delta))

    def _delta(self, epsilon: float) -> float:
        terms = merge_unsampled(self._terms())
        if (mu := only_gaussian(terms)) is not None:
            return gaussian_delta(mu, epsilon)
        found = self._distribution(terms)
        renyi = renyi_curve(terms)
        if found is None or epsilon > LARGEST_EPSILON:
            return min(delta_bound(renyi, epsilon)[1], inclusion_probability(terms))
        # A number that is none says nothing.
        shown = float(found.distribution.get_delta_for_epsilon(epsilon))
        delta = 1.0 if math.isnan(shown) else max(0.0, shown) + found.error
        if found.error <= _SMALL_SHARE * delta:
            return min(1.0, delta)
        most = min(delta_bound(renyi, epsilon)[1], inclusion_probability(terms))
        return min(delta, most, proven_delta(terms, renyi, epsilon))


# Of so few distinct mechanisms, composing all anew is cheaper than adding what is new.
_FEW = 2


class GrowingPLDAccountant(PLDAccountant):
    """A `PLDAccountant` that is asked again and again while events are added.

    What was composed when it was last asked is kept, and only what is new is composed with it.

    Guarantees:
        As those of `PLDAccountant`. Its numbers depend, in their last digits, on when it was asked:
        sums are rounded in another order, and each addition gives up a tail of 1e-15, to infinity.
    """

    def __init__(self, value_discretization_interval: float = 1e-4):
        super().__init__(value_discretization_interval)
        self._grown: tuple[float, dict[Any, int], Composed | None] | None = None

    def _distribution(self, terms: _Terms) -> Composed | None:
        if len(terms) <= _FEW:
            return super()._distribution(terms)
        interval = max(self._interval, 2 * largest_loss(terms) / MOST_POINTS)
        before: dict[Any, int] = {}
        total: Composed | None = None
        if self._grown is not None and self._grown[0] == interval:
            _, before, total = self._grown
        now = dict(terms)
        if not has_grid(renyi_curve(terms), LARGEST_EPSILON) or not fits(
            [(one_step(mechanism, interval), count) for mechanism, count in terms]
        ):
            return None
        if any(now.get(mechanism, 0) < count for mechanism, count in before.items()):
            # Gaussians without sampling were merged to another one.
            before, total = {}, None
        for mechanism, count in terms:
            more = count - before.get(mechanism, 0)
            if more:
                step = composed(one_step(mechanism, interval), more)
                total = step if total is None else total.compose(step)
        self._grown = interval, now, total
        return total
