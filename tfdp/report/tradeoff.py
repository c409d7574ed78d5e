"""What a membership attacker can achieve, from the privacy profile delta(epsilon).

An attacker sees everything that was released and decides between two neighbouring data sets: the
unit is in the data, or it is not. Let FPR be the probability of saying "in" where it is not, and
TPR that of saying "in" where it is. Then (epsilon, delta)-privacy implies (Wasserman and Zhou 2010;
Kairouz, Oh and Viswanath 2015, arXiv:1311.0776, theorem 2.1)

    TPR <= e^epsilon FPR + delta    and    1 - FPR <= e^epsilon (1 - TPR) + delta.

A release is (epsilon, delta(epsilon))-private for every epsilon at once, so the smallest of all
these bounds holds. Over all epsilon they are the trade-off function of Dong, Roth and Su 2019
(arXiv:1905.02383, section 2), which no test can beat.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

# Of each kind of spacing. Where two neighbouring points differ by h, the bound is off by a part of
# order h^2, upwards.
POINTS = 64
# The largest epsilon that is looked at is that of this delta.
_SMALLEST_DELTA = 1e-9
_LARGEST_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """A mechanism that is (epsilon, delta)-private for each of these pairs.

    Attributes:
        epsilons: Float64 vector, at least zero and finite.
        deltas: Float64 vector of the same length, in [0, 1].
    """

    epsilons: np.ndarray
    deltas: np.ndarray

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Returns the largest TPR that any attacker with this FPR can have.

        Guarantees:
            An upper bound for every attacker, whatever else they know. It is symmetric: the same
            numbers bound an attacker who proves absence. Never below the FPR, which guessing has.

        Args:
            false_positive_rate: In [0, 1].

        Example:
            >>> profile = Profile(np.array([1.0]), np.array([1e-5]))
            >>> round(profile.true_positive_rate(0.01), 4)
            0.0272
        """
        growth = np.exp(np.minimum(self.epsilons, _LARGEST_EXPONENT))
        low = growth * false_positive_rate + self.deltas
        high = 1 - (1 - false_positive_rate - self.deltas) / growth
        bound = min(1.0, float(np.min(np.minimum(low, high))))
        return max(false_positive_rate, bound)

    @property
    def advantage(self) -> float:
        """The largest difference of TPR and FPR: the total variation distance.

        Each pair bounds it by (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh and
        Viswanath 2015, remark A.1). An attacker for whom both cases are equally likely is right
        with probability (1 + advantage) / 2 at most.
        """
        half = np.tanh(self.epsilons / 2)
        decay = np.exp(-self.epsilons)
        return min(1.0, float(np.min(half + 2 * self.deltas * decay / (1 + decay))))


def make_profile(
    get_epsilon: Callable[[float], float],
    get_delta: Callable[[float], float],
    points: int = POINTS,
) -> Profile:
    """Returns the profile of an accountant's `get_epsilon(delta)` and `get_delta(epsilon)`.

    It has about twice as many pairs as `points`. Fewer of them make every bound larger.

    Where epsilon is infinite, or nothing was released, one pair says everything.
    """
    for delta in (_SMALLEST_DELTA, 1e-6, 1e-3):
        largest = float(get_epsilon(delta))
        if math.isfinite(largest):
            break
    else:
        largest = 0.0
    epsilons = np.array([0.0])
    if largest > 0:
        epsilons = np.union1d(
            np.linspace(0, largest, points), np.geomspace(1e-4 * largest, largest, points)
        )
    return Profile(epsilons, np.array([float(get_delta(float(e))) for e in epsilons]))
