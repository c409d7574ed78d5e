"""Two neighbours in a row: one unit is removed, then another one is added, or the other way round.

With delta_1 and delta_2 those of the two, for every epsilon_1 between 0 and epsilon,

    delta(epsilon) <= delta_1(epsilon_1) + e^epsilon_1 delta_2(epsilon - epsilon_1)

(P <= e^epsilon_1 R + delta_1 and R <= e^epsilon_2 Q + delta_2, on every event).
"""

import math

import numpy as np

from tfdp.accounting.losses.bounds import DeltaBounds

# Shares of the first of the two: mostly it costs about as much as the second, but nearly nothing
# where few steps of many have it.
_SMALL = 0.3 / 2.0 ** np.arange(1, 11)
_PARTS = np.concatenate([[0.0], _SMALL, np.linspace(0.3, 0.7, 41), 1 - _SMALL])


class ChainBounds:
    """Bounds of delta and epsilon of two neighbours in a row.

    Args:
        first: Of the first of the two.
        second: Of the second.
    """

    def __init__(self, first: DeltaBounds, second: DeltaBounds):
        self._first = first
        self._second = second

    def upper_delta(self, epsilon: float) -> float:
        """Returns an upper bound of delta."""
        return min(
            self._first.upper_delta(part)
            + math.exp(min(part, 700.0)) * self._second.upper_delta(epsilon - part)
            for part in (epsilon * _PARTS).tolist()
        )

    def upper_epsilon(self, delta: float) -> float:
        """Returns an upper bound of the smallest epsilon with this delta; may be infinite."""
        if self.upper_delta(0.0) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while self.upper_delta(high) > delta:
            low, high = high, 2 * high
            if high > 1e4:
                return math.inf
        # It was checked that the end that is returned is within delta.
        while high - low > 1e-10 * high:
            middle = (low + high) / 2
            if self.upper_delta(middle) > delta:
                low = middle
            else:
                high = middle
        return high

    def estimated_epsilon(self, delta: float) -> float:
        """Returns the upper bound: no pair is known to be the worst."""
        return self.upper_epsilon(delta)

    def lower_epsilon(self, delta: float) -> float:
        """Returns that of the first: the second unit may contribute nothing."""
        return self._first.lower_epsilon(delta)
