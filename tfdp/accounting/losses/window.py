"""Where to look for a sum of privacy losses, and on which grid: Renyi divergences tell.

Nothing here is part of a proof: a bad choice makes the bounds of `tfdp.accounting.losses.bounds`
wide, never wrong. Where rdp(a) is the divergence of order a, log E_P[exp(t L)] is t rdp(1 + t).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tfdp.accounting.losses.grid import GridPMF, Window, tilted

# A function from a float64 vector of orders above 1 to the divergences of everything composed.
Renyi = Callable[[np.ndarray], np.ndarray]

# Logarithms of the exponents that are tried first, and the ends of the search.
_FIRST = np.linspace(math.log(0.01), math.log(300.0), 16)
_LOWEST, _HIGHEST = math.log(1e-9), math.log(1e15)
_REFINEMENTS = 3
# Tilts that are tried, as multiples of the smallest one.
_LARGER = (1.0, 1.5, 2.2, 3.3, 5.0, 8.0, 13.0)
# Beyond each end of a window there is at most exp(-_LOG_TAIL) of the tilted sum.
_LOG_TAIL = 18.0
# The ends of a window are found with exponents that differ from the tilt. These are the differences
# that are tried, as fractions of the difference that would be best if the sum were Gaussian.
_PARTS = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5)
# A sum of many kinds of losses is nearly Gaussian, so fewer differences are enough.
_MANY, _PARTS_OF_MANY = 50, (0.4, 1.0)
# Epsilons larger than this, and losses of a smaller mean, are left to Renyi divergences.
LARGEST_EPSILON, _SMALLEST_MEAN = 500.0, 1e-12
# The grid is made for this delta, and the same grid serves every delta.
_REFERENCE_DELTA = 1e-8


def has_grid(renyi: Renyi, largest_epsilon: float = LARGEST_EPSILON) -> bool:
    """Whether losses with these divergences are neither too large nor too small for a grid."""
    _, epsilon = epsilon_bound(renyi, _REFERENCE_DELTA)
    mean = float(renyi(np.array([1 + 1e-6]))[0])
    return epsilon <= largest_epsilon and mean >= _SMALLEST_MEAN


def rounded_curve(directions: Sequence[Sequence[tuple[GridPMF, int]]]) -> Renyi:
    """Returns the divergences of rounded losses, at every order in the worst direction."""

    def moment(t: float) -> float:
        return max(sum(count * tilted(pmf, t)[0] for pmf, count in steps) for steps in directions)

    return lambda orders: np.array([moment(t) for t in orders - 1]) / (orders - 1)


def _best(costs: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
    """Returns, approximately, the exponent at which costs are smallest, and the smallest cost.

    Costs must first fall and then rise.
    """
    x = _FIRST
    values = costs(np.exp(x))
    while True:
        best = int(np.argmin(values))
        if 0 < best < len(x) - 1 or not _LOWEST < x[best] < _HIGHEST:
            break
        x = x + (x[-2] - x[0]) * (1 if best else -1)
        values = costs(np.exp(x))
    for _ in range(_REFINEMENTS):
        x = np.linspace(x[max(best - 1, 0)], x[min(best + 1, len(x) - 1)], 9)
        values = costs(np.exp(x))
        best = int(np.argmin(values))
    return math.exp(x[best]), float(values[best])


def _epsilons(renyi: Renyi, delta: float, t: np.ndarray) -> np.ndarray:
    # Canonne, Kamath and Steinke 2020, arXiv:2004.00010, proposition 12.
    return renyi(1 + t) + np.log(t) - np.log1p(t) - (math.log(delta) + np.log1p(t)) / t


def _log_deltas(renyi: Renyi, epsilon: float, t: np.ndarray) -> np.ndarray:
    return t * (renyi(1 + t) - epsilon + np.log(t) - np.log1p(t)) - np.log1p(t)


def epsilon_bound(renyi: Renyi, delta: float) -> tuple[float, float]:
    """Returns the best tilt and its epsilon, which is an upper bound."""
    tilt, bound = _best(lambda t: _epsilons(renyi, delta, t))
    return tilt, max(0.0, bound)


def delta_bound(renyi: Renyi, epsilon: float) -> tuple[float, float]:
    """Returns the best tilt and its delta, which is an upper bound."""
    tilt, bound = _best(lambda t: _log_deltas(renyi, epsilon, t))
    return tilt, math.exp(min(0.0, bound))


def larger_tilt(
    steps: Sequence[tuple[GridPMF, int]],
    tilts: tuple[float, float],
    delta: float,
    epsilon: float | None,
) -> float:
    """Returns a tilt between the two that suits the direction with the smaller losses.

    Args:
        steps: Rounded losses of that direction, and how many there are of each.
        tilts: The smallest tilt and the largest.
        delta: What epsilon is wanted for; not used where `epsilon` is given.
        epsilon: What delta is wanted for, or None.
    """
    smallest, largest = tilts
    t = np.array([smallest * factor for factor in _LARGER if smallest * factor <= largest])
    if len(t) < 2:
        return smallest
    curve = rounded_curve([steps])
    costs = _epsilons(curve, delta, t) if epsilon is None else _log_deltas(curve, epsilon, t)
    return float(t[np.argmin(costs)])


def make_window(steps: Sequence[tuple[GridPMF, int]], tilt: float, log_delta: float) -> Window:
    """Returns where the tilted sum of so many rounded losses of every kind is.

    Args:
        steps: Rounded losses, and how many there are of each.
        tilt: Exponent of the tilt.
        log_delta: Logarithm of a probability, not tilted, that may be left above.
    """

    def moments(t: float) -> float:
        return sum(count * tilted(pmf, t)[0] for pmf, count in steps)

    here, variance = moments(tilt), 0.0
    for pmf, count in steps:
        atoms = tilted(pmf, tilt)[1]
        mean = float(atoms @ pmf.losses)
        variance += count * float(atoms @ (pmf.losses - mean) ** 2)
    # The difference that is best for a Gaussian. Heavier tails need smaller ones.
    reach = math.sqrt(2 * _LOG_TAIL / variance)
    parts = _PARTS if len(steps) < _MANY else _PARTS_OF_MANY
    above = [tilt + reach * part for part in parts]
    below = [*(tilt - reach * part for part in parts), 0.0, -1.0]
    known = [(t, moments(t)) for t in above]
    highs = [(max((m - here + _LOG_TAIL) / (t - tilt), (m - log_delta) / t), t) for t, m in known]
    lows = [((here - moments(t) - _LOG_TAIL) / (tilt - t), t) for t in below]
    high, tilt_above = min(highs)
    low, tilt_below = max(lows)
    return Window(low, high, tilt, tilt_below, tilt_above)


def grid_interval(renyi: Renyi, steps: int, relative_error: float) -> tuple[float, float]:
    """Returns an interval of the grid that gives about the wanted relative error, and a tilt.

    For n steps the bounds of epsilon are about 2 n h^2 (1 + tilt) apart, where the tilt is about
    2 log(1/delta) / epsilon. Tilts larger than the returned one show nothing but the largest loss.
    Both are zero where the divergences show no loss at all: then no grid shows more.
    """
    _, epsilon = epsilon_bound(renyi, _REFERENCE_DELTA)
    # A coarse grid leaves something out, which can make a divergence at an order near 1 negative.
    deviation = math.sqrt(2 * max(0.0, float(renyi(np.array([1 + 1e-6]))[0])))
    scale = max(epsilon, deviation)
    if scale == 0:
        return 0.0, 0.0
    tilt = -2 * math.log(_REFERENCE_DELTA) / scale
    interval = math.sqrt(relative_error * scale / (2.2 * steps * (1 + tilt)))
    return min(interval, 0.5 / (1 + tilt), scale / 32), _LARGER[-1] * tilt
