"""Bounds of delta and of epsilon, from both sides, of a sum of rounded losses."""

import functools
import math

import numpy as np

from tfdp.accounting.losses.grid import LossSum

# Exponents are kept below this, in absolute value.
_LARGE = 600.0
# Terms below exp(-_NEGLIGIBLE) delta are not summed, but bounded.
_NEGLIGIBLE = 30.0
# How far noise may move a loss, as t in units of s; see `tfdp.accounting.losses.grid`.
_REACH = 2.1
# The share of the variance of rounding that is added to a loss with a density. The rest of that
# variance is already in the cell before it is rounded.
_ADDED = 2 / 3
# How often the distance between a lower bound and the upper one is halved in the search.
_BISECTIONS = 8


class DeltaBounds:
    """Two functions of epsilon: delta is nowhere above one and nowhere below the other.

    Args:
        losses: The sum of rounded losses of a pair.
    """

    def __init__(self, losses: LossSum):
        self._losses = losses
        h, n = losses.interval, len(losses.atoms)
        self._x = (losses.first + np.arange(n)) * h
        # Probabilities are weights in units of exp(log_scale - tilt centre).
        self._centre = float(self._x[n // 2])
        scale = math.exp(min(losses.log_scale - losses.tilt * self._centre, _LARGE))
        away = self._x - self._centre
        self._usable = np.abs(away) * (1 + losses.tilt) < _LARGE
        weights = losses.atoms * np.exp(np.clip(-losses.tilt * away, -_LARGE, _LARGE))
        above = np.append(np.cumsum(weights[:0:-1])[::-1], 0.0)
        # delta(x) = (1 - e^-h) sum_{y >= x} e^(x - y) P(X > y), of which all terms are positive.
        near = np.where(self._usable, away, 0.0)
        terms = np.where(self._usable, above * np.exp(-near), 0.0)
        sums = np.cumsum(terms[::-1])[::-1] * np.exp(near)
        self._delta = np.where(self._usable, -math.expm1(-h) * sums, above) * scale
        # Of the atoms, and of two sums of n terms each.
        self._relative = losses.scaled + 4 * n * 2.0**-53

    @functools.cached_property
    def _rounding(self) -> float:
        """What floating-point numbers lose of delta, in units of exp(log_scale - tilt epsilon)."""
        losses = self._losses
        # The norm of the kernel e^(-tilt y) (1 - e^-y) on the grid.
        decay = min(2 * losses.tilt * losses.interval, _LARGE)
        terms = min(float(len(self._x)), 1 / math.expm1(decay))
        return losses.moved + losses.transformed * math.sqrt(terms)

    def _unit(self, epsilon: float | np.ndarray) -> np.ndarray:
        exponent = self._losses.log_scale - self._losses.tilt * np.asarray(epsilon)
        return np.exp(np.clip(exponent, -_LARGE, _LARGE))

    @functools.cached_property
    def _upper(self) -> np.ndarray:
        """An upper bound of delta at every loss of the grid."""
        bound = self._delta * (1 + self._relative) + self._rounding * self._unit(self._x)
        bound = np.minimum(1.0, bound + self._losses.lost + self._losses.infinite)
        # Below the usable epsilons nothing is known of delta except that it falls with epsilon.
        return np.where(self._usable | (self._x > self._centre), bound, 1.0)

    def _at(self, deltas: np.ndarray, epsilon: float) -> float:
        """Returns deltas(epsilon), which between losses of the grid is linear in e^epsilon."""
        j = int(np.searchsorted(self._x, epsilon)) - 1
        share = math.expm1(epsilon - self._x[j]) / math.expm1(self._losses.interval)
        return float(deltas[j] + (deltas[j + 1] - deltas[j]) * share)

    def _contains(self, epsilon: float, radius: float = 0.0) -> bool:
        return bool(self._x[0] < epsilon - radius and epsilon + radius <= self._x[-1])

    def upper_delta(self, epsilon: float) -> float:
        """Returns an upper bound of delta."""
        if self._contains(epsilon):
            return self._at(self._upper, epsilon)
        return 1.0 if epsilon <= self._x[0] else float(self._upper[-1])

    def upper_epsilon(self, delta: float) -> float:
        """Returns an upper bound of the smallest epsilon with this delta; may be infinite."""
        within = np.flatnonzero(self._upper <= delta)
        if not len(within):
            return math.inf
        j = int(within[0])
        if j == 0:
            return max(0.0, float(self._x[0]))
        above, below = float(self._upper[j - 1]), float(self._upper[j])
        step = math.log1p((above - delta) / (above - below) * math.expm1(self._losses.interval))
        return max(0.0, float(self._x[j - 1]) + step)

    def estimated_epsilon(self, delta: float) -> float:
        """Returns the upper bound, less what rounding adds to it to leading order."""
        losses = self._losses
        # Noise of variance v adds v p / 2 to delta, where p is the density of losses, and delta
        # falls by about p / (1 + tilt).
        added = _ADDED * losses.variance * (1 + losses.tilt) / 2
        return max(0.0, self.upper_epsilon(delta) - added)

    def lower_delta(self, epsilon: float) -> float:
        """Returns a lower bound of delta; zero where none is known."""
        losses = self._losses
        away = abs(epsilon - self._centre) + losses.interval
        if not self._contains(epsilon) or away * (1 + losses.tilt) >= _LARGE:
            return 0.0
        rounded = self._at(self._delta, epsilon) * (1 - self._relative)
        lost = float(self._unit(epsilon)) * (self._rounding + losses.wrapped) + losses.cut
        if not lost < rounded:
            return 0.0
        return max(0.0, rounded - lost - self._excess(epsilon, rounded))

    def lower_epsilon(self, delta: float) -> float:
        """Returns a lower bound of the smallest epsilon with this delta."""
        high = self.upper_epsilon(delta)
        if not math.isfinite(high):
            return 0.0
        losses = self._losses
        step = losses.proxy * (1 + losses.tilt) + 1e-6 * high
        low = high - step
        while low > 0 and self.lower_delta(low) <= delta:
            high, step = low, 2 * step
            low = high - step
        # It was checked that the returned epsilon has a larger delta, whatever lies between.
        found = max(low, 0.0) if low > 0 else 0.0
        for _ in range(_BISECTIONS):
            middle = (max(low, 0.0) + high) / 2
            if self.lower_delta(middle) > delta:
                found = low = middle
            else:
                high = middle
        return found

    def _excess(self, epsilon: float, delta: float) -> float:
        """Returns a bound on how much rounding has added to delta, which is about this."""
        losses = self._losses
        s, mean = math.sqrt(losses.proxy), losses.proxy / 2
        reach = mean + _REACH * s
        radius = reach + mean + s * math.sqrt(2 * (_NEGLIGIBLE - math.log(delta)))
        if not self._contains(epsilon, radius):
            return math.inf
        ends = np.searchsorted(self._x, [epsilon - radius, epsilon + radius])
        near = slice(int(ends[0]), int(ends[1]))
        x = self._x[near]
        psi = _psi(np.maximum(np.abs(x - epsilon) - reach, 0.0), s, mean)
        weights = psi * self._unit(x)
        total = float(losses.atoms[near] @ weights)
        total += losses.transformed * float(np.linalg.norm(weights))
        total += losses.wrapped * float(weights.max(initial=0.0))
        total += losses.moved * (1 + losses.tilt * s) * float(self._unit(epsilon - radius))
        total += float(_psi(np.array(radius - reach), s, mean))
        return total / (1 - 2 * math.exp(-(_REACH**2) / 2))


def _psi(distance: np.ndarray, s: float, mean: float) -> np.ndarray:
    """Returns a bound on int_d^inf e^(y - d) P(|N| > y) dy."""
    from scipy import special

    beyond = np.maximum(distance - mean, 0.0)
    tail = math.log(s) + math.log(2 * math.pi) / 2 + s * s / 2 - beyond
    integral = np.exp(np.minimum(tail + special.log_ndtr(s - beyond / s), _LARGE))
    before = np.minimum(np.maximum(mean - distance, 0.0), _LARGE)
    return np.expm1(before) + np.exp(before) * integral
