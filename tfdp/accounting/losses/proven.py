"""Proven upper bounds for mechanisms that have dominating pairs, as `PRVAccountant` proves them."""

import math
from collections.abc import Sequence
from typing import Any

from tfdp.accounting.losses.pairs import PAIRS, LossPair
from tfdp.accounting.losses.sums import Steps, bound_delta
from tfdp.accounting.losses.window import (
    LARGEST_EPSILON,
    Renyi,
    delta_bound,
    epsilon_bound,
    has_grid,
)

# How far apart the bounds of both sides should be; the upper one is far closer to the truth.
_RELATIVE_ERROR = 0.005

_Terms = list[tuple[Any, int]]


def directions(found: Sequence[tuple[Sequence[LossPair], int]]) -> list[Steps]:
    """Returns the pairs of every direction, from the pairs of every mechanism and its count."""
    most = max(len(pairs) for pairs, _ in found)
    # One pair is that of both directions.
    return [[(pairs[min(i, len(pairs) - 1)], n) for pairs, n in found] for i in range(most)]


def _of_terms(terms: _Terms) -> list[Steps]:
    return directions([(PAIRS[type(mechanism)](mechanism), count) for mechanism, count in terms])


def proven_epsilon(terms: _Terms, renyi: Renyi, delta: float) -> float:
    """Returns an upper bound of epsilon; infinite where there is no grid.

    Args:
        terms: Mechanisms with pairs, and how many there are of each.
        renyi: Their Renyi divergences.
        delta: Strictly between 0 and 1.
    """
    if not has_grid(renyi) or epsilon_bound(renyi, delta)[1] > LARGEST_EPSILON:
        return math.inf
    bounds = bound_delta(_of_terms(terms), renyi, _RELATIVE_ERROR, delta)
    return max((bound.upper_epsilon(delta) for bound in bounds), default=math.inf)


def proven_delta(terms: _Terms, renyi: Renyi, epsilon: float) -> float:
    """Returns an upper bound of delta; 1 where there is no grid."""
    most = delta_bound(renyi, epsilon)[1]
    if epsilon > LARGEST_EPSILON or most == 0 or not has_grid(renyi):
        return 1.0
    delta = most
    # What may be cut off depends on delta, so that it is found twice.
    for _ in range(2):
        bounds = bound_delta(_of_terms(terms), renyi, _RELATIVE_ERROR, delta, epsilon)
        delta = max((bound.upper_delta(epsilon) for bound in bounds), default=1.0)
    return delta
