"""Bounds of delta for many steps of several kinds, from their dominating pairs."""

import math
from collections.abc import Sequence

from tfdp.accounting.losses.bounds import DeltaBounds
from tfdp.accounting.losses.grid import GridPMF, add_losses, round_losses
from tfdp.accounting.losses.pairs import LossPair
from tfdp.accounting.losses.window import (
    Renyi,
    delta_bound,
    epsilon_bound,
    grid_interval,
    larger_tilt,
    make_window,
    rounded_curve,
)

Steps = Sequence[tuple[LossPair, int]]

# The largest number of losses on a grid. If the interval is too wide, the bounds are worth nothing;
# if it is too narrow, rounding errors exceed it.
_MOST_POINTS = 2**22
# If the interval is wider than the wanted one by this factor, the bounds are wider than what they
# bound.
_WIDEST = 10.0
_SMALLEST_INTERVAL, _LARGEST_INTERVAL = 1e-13, 1.0
# Logarithm of the share of delta that may be lost because losses are beyond their grid.
_LOG_SHARE = -9.0
_SMALLEST_DELTA = 1e-280
# Tilts that are tried, until one of them gives a better bound than the divergences do: multiples of
# the tilt that is best for the divergences. If few units are sampled at all, these are about rarer
# and larger losses than delta is, and a little more or far less of a tilt is about the others.
_TILTS = (1.0, 1.1, 1.2, 1.5, 0.5, 0.25, 0.125, 0.0625, 0.03125)
# How many points a grid has that only shows where losses are.
_COARSE_POINTS = 2**14


def _rounded(steps: Steps, interval: float, log_tail: float) -> list[tuple[GridPMF, int]]:
    return [(round_losses(pair, interval, log_tail), count) for pair, count in steps]


def _width(pair: LossPair, log_tail: float) -> float:
    (low, high), _ = pair.bounds(log_tail)
    return high - low


def bound_delta(
    directions: Sequence[Steps],
    renyi: Renyi | None,
    relative_error: float,
    delta: float,
    epsilon: float | None = None,
) -> list[DeltaBounds]:
    """Returns bounds of delta in every direction, or none where there is no grid for them.

    Args:
        directions: For removing and for adding a unit, or for both at once: pairs, and how many
            steps have each of them.
        renyi: About the Renyi divergences of everything, or None where they are not known.
        relative_error: How far apart bounds of epsilon should be.
        delta: About the delta at which the bounds are to be good; what is cut off depends on it.
        epsilon: The epsilon at which they are, or None for the one that belongs to delta.
    """
    count = sum(n for _, n in directions[0])
    log_tail = math.log(max(delta, _SMALLEST_DELTA) / count) + _LOG_SHARE
    width = max(_width(pair, log_tail) for steps in directions for pair, _ in steps)
    if renyi is None:
        coarse = width / _COARSE_POINTS
        renyi = rounded_curve([_rounded(steps, coarse, log_tail) for steps in directions])
    best = epsilon_bound(renyi, delta) if epsilon is None else delta_bound(renyi, epsilon)
    wanted, largest_tilt = grid_interval(renyi, count, relative_error)
    interval, tilt = max(wanted, width / _MOST_POINTS), min(best[0], largest_tilt)
    largest = min(_LARGEST_INTERVAL, _WIDEST * wanted)
    found: list[DeltaBounds] = []
    for steps in directions:
        if not _SMALLEST_INTERVAL < interval < largest:
            return []
        rounded = _rounded(steps, interval, log_tail)
        if found:  # Adding a unit has smaller losses than removing it.
            tilt = larger_tilt(rounded, (tilt, largest_tilt), delta, epsilon)
        shown: list[tuple[float, DeltaBounds]] = []
        for tried in (tilt * factor for factor in _TILTS):
            window = make_window(rounded, tried, log_tail + math.log(count))
            size = window.high - window.low
            if size > _MOST_POINTS * largest:
                continue
            at = rounded
            if size > _MOST_POINTS * interval:
                at = _rounded(steps, size / _MOST_POINTS, log_tail)
            bounds = DeltaBounds(add_losses(at, window))
            bound = bounds.upper_epsilon(delta) if epsilon is None else bounds.upper_delta(epsilon)
            shown.append((bound, bounds))
            if bound < best[1]:
                break
        if not shown:
            return []
        found.append(min(shown, key=lambda pair: pair[0])[1])
    return found
