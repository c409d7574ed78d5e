"""Accounting by losses that are drawn: bounds that hold with a stated probability."""

import math
from typing import Any, NamedTuple

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.losses.draws import DRAWS, draw_losses, numbers_of
from tfdp.accounting.unsampled import merge_unsampled
from tfdp.events import UnsupportedEventError
from tfdp.events.arguments import positive_integer, real_number

# Epsilons for which bounds hold together: 0, and from the smallest to the largest, 0.4 % apart.
_SMALLEST, _LARGEST, _STEP = 1e-3, 1e3, 1.004
_GRID = np.array(
    [0.0, *_SMALLEST * _STEP ** np.arange(math.ceil(math.log(_LARGEST / _SMALLEST, _STEP)) + 1)]
)
# A loss is charged as this much larger, relatively and absolutely: what it may lose by rounding.
_ROUNDING = 1e-9
_BISECTIONS = 60
# With more numbers than this to draw, an answer would take days.
_MOST_NUMBERS = 2.0**40
# Steps of a pass, of which as many numbers are in memory at once.
_LONGEST_PASS = 2**22


class DeltaInterval(NamedTuple):
    """What delta is at some epsilon.

    Attributes:
        lower: Lower bound, that holds with the confidence.
        estimate: The mean of what was drawn; no bound.
        upper: Upper bound, that holds with the confidence.
    """

    lower: float
    estimate: float
    upper: float


def mean_bound(mean: float, draws: int, log_risk: float, upper: bool) -> float:
    """Returns a bound of the expectation of numbers between 0 and 1, by Chernoff and Hoeffding.

    It is the m with draws * KL(mean, m) = -log_risk, of Bernoulli distributions. With a probability
    of at least 1 - e^log_risk the expectation is not beyond it (Hoeffding 1963, theorem 1).

    Args:
        mean: Of the numbers, which are independent.
        draws: How many there are.
        log_risk: Logarithm of the probability that the bound does not hold.
        upper: Whether it is an upper or a lower bound.
    """
    target = -log_risk / draws
    inside, outside = (mean, 1.0) if upper else (mean, 0.0)
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if 0 < middle < 1 and _divergence(mean, middle) <= target:
            inside = middle
        else:
            outside = middle
    return outside


def _divergence(share: float, q: float) -> float:
    found = share * math.log(share / q) if share > 0 else 0.0
    return found + ((1 - share) * (math.log1p(-share) - math.log1p(-q)) if share < 1 else 0.0)


class MonteCarloAccountant(Accountant):
    """Draws privacy losses, and bounds delta by them: with a probability, and not with certainty.

    The delta of everything composed is E[(1 - e^(epsilon - L))_+] with L the sum of the mechanisms'
    losses, for removing a unit and for adding one (`tfdp.accounting.losses.draws`). `num_samples`
    such sums are drawn for each.

    Guarantees:
        With probability `confidence`, over the draws, all answers about what is composed are upper
        bounds: every delta, every epsilon. Each is the bound of Chernoff and Hoeffding for the
        mean. The risk is shared out over the two directions, over the two sides of
        `get_delta_interval` and over a fixed grid of epsilons, 0.4 % apart. Between two of these
        delta falls, so that the smaller one counts. The same events have the same answer, so that
        nobody is told less for asking again. But who tries many plans, or many seeds, and keeps the
        cheapest has taken that risk as often.

    Edge cases:
        A delta below about log(2e4 / (1 - confidence)) / num_samples cannot be shown: epsilon is
        infinite there. With 10^6 draws and the confidence that is the default that is 2.4e-5.
        Truncated samples, and all samples under REPLACE_ONE, are charged as if they were not
        drawn, as a `SampledGaussian` of everything. Budgets, and searches for noise, refuse this
        accountant: they would ask until a draw is lucky.

    Args:
        num_samples: How many sums of losses are drawn, in either direction. Time grows with it, and
            with the number of steps.
        confidence: In (0, 1).
        seed: Of the draws, which need not be secret.

    Attributes:
        confidence: As given.
        num_samples: As given.

    Raises:
        ValueError: an argument is out of range.
        TypeError: it is no number.

    Example:
        >>> from tfdp.events import GaussianSumEvent
        >>> accountant = MonteCarloAccountant(num_samples=100_000)
        >>> _ = accountant.compose(GaussianSumEvent(1.0, noise_stddev=1.0))
        >>> lower, _, upper = accountant.get_delta_interval(1.0)
        >>> lower < 0.127 < upper == accountant.get_delta(1.0) < 0.14
        True

    References:
        Wang et al. 2023, A randomized approach to tight privacy accounting, arXiv:2304.07927;
        Choquette-Choo et al. 2024, arXiv:2410.06266; Dong and Ganesh 2026, arXiv:2602.09338.
    """

    prices = DRAWS
    computes_distributions = True

    def __init__(
        self, num_samples: int = 1_000_000, confidence: float = 1 - 1e-6, *, seed: int = 0
    ):
        super().__init__()
        self.num_samples = positive_integer("num_samples", num_samples)
        held = real_number("confidence", confidence, minimum=0, inclusive=False, maximum=1)
        if held == 1:
            raise ValueError("confidence must be below 1: no number of draws is certain.")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be an integer, not negative. Received: seed={seed!r}.")
        self.confidence, self._seed = held, seed
        # Over both directions, both sides, and all epsilons.
        self._log_risk = math.log((1 - held) / (4 * len(_GRID)))
        self._drawn: tuple[list[tuple[Any, int]], list[np.ndarray]] | None = None

    def __repr__(self) -> str:
        return (
            f"MonteCarloAccountant(num_samples={self.num_samples}, confidence={self.confidence}, "
            f"seed={self._seed})"
        )

    def get_delta_interval(self, target_epsilon: float) -> DeltaInterval:
        """Returns bounds of delta from both sides, of what mechanisms cost without their failures.

        Args:
            target_epsilon: At least 0.

        Raises:
            ValueError: it is negative or not finite.
            TypeError: it is not a number.
        """
        epsilon = real_number("target_epsilon", target_epsilon, minimum=0, inclusive=True)
        if self._is_non_private():
            return DeltaInterval(1.0, 1.0, 1.0)
        if not self._terms():
            return DeltaInterval(0.0, 0.0, 0.0)
        means = [_mean(losses, epsilon) for losses in self._losses()]
        lower = 0.0
        if epsilon <= _GRID[-1]:
            above = float(_GRID[np.searchsorted(_GRID, epsilon)])
            lower = max(
                mean_bound(_mean(losses, above), self.num_samples, self._log_risk, False)
                for losses in self._losses()
            )
        return DeltaInterval(lower, max(means), self._delta(epsilon))

    def _losses(self) -> list[np.ndarray]:
        """Returns the sums of losses of either direction, sorted; drawn once for what they are."""
        terms = merge_unsampled(self._terms())
        if self._drawn is None or self._drawn[0] != terms:
            numbers = math.fsum(n * numbers_of(m) for m, n in terms)
            longest = max(numbers_of(m) for m, _ in terms)
            if longest > _LONGEST_PASS:
                raise UnsupportedEventError(
                    f"A pass of {longest} steps is too long to be drawn: at most {_LONGEST_PASS}. "
                    "Take another accountant."
                )
            if 2 * numbers * self.num_samples > _MOST_NUMBERS:
                raise UnsupportedEventError(
                    f"{2 * numbers * self.num_samples:.2g} numbers would have to be drawn, which "
                    "takes days. Ask with fewer samples (num_samples=...), or take another "
                    "accountant."
                )
            generator = np.random.Generator(np.random.SFC64(self._seed))
            found = []
            for removed in (True, False):
                total = np.zeros(self.num_samples)
                for mechanism, count in terms:
                    total += draw_losses(mechanism, count, len(total), removed, generator)
                total += _ROUNDING * (1 + np.abs(total))
                total.sort()
                found.append(total)
            self._drawn = terms, found
        return self._drawn[1]

    def _upper(self, epsilon: float) -> float:
        """Returns the bound at an epsilon of the grid."""
        return max(
            mean_bound(_mean(losses, epsilon), self.num_samples, self._log_risk, True)
            for losses in self._losses()
        )

    def _delta(self, epsilon: float) -> float:
        return self._upper(float(_GRID[np.searchsorted(_GRID, epsilon, side="right") - 1]))

    def _epsilon(self, delta: float) -> float:
        if self._upper(float(_GRID[-1])) > delta:
            return math.inf
        low, high = -1, len(_GRID) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._upper(float(_GRID[middle])) <= delta else (middle, high)
            )
        return float(_GRID[high])


def _mean(losses: np.ndarray, epsilon: float) -> float:
    """Returns the mean of (1 - e^(epsilon - L))_+ over sorted losses."""
    beyond = losses[np.searchsorted(losses, epsilon) :]
    return float(np.sum(-np.expm1(epsilon - beyond)) / len(losses))
