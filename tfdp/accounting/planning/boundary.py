"""The edge of a budget: the last number whose cost is within it, by few evaluations."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

# d log(epsilon) / d log(noise) where little is known; -1 with much noise, -2 with little.
TYPICAL_SLOPE = -1.5
# Newton's steps may fail to halve what lies between this often before it is halved by force.
_PATIENCE = 4
# How far beside the guessed edge the two sides are looked for, in tolerances.
_MARGIN = 0.4


@dataclasses.dataclass(frozen=True)
class Axis:
    """The numbers among which the edge is looked for.

    Attributes:
        smallest: The least of them.
        largest: The greatest of them.
        integer: True: whole numbers whose cost rises. False: positive real
            numbers whose cost falls, and the edge is `tolerance` wide.
        tolerance: Relative, of real numbers.
    """

    smallest: float
    largest: float
    integer: bool
    tolerance: float

    def position(self, x: float) -> float:
        """Returns the logarithm on which costs fall."""
        return -math.log(x) if self.integer else math.log(x)

    def number(self, position: float) -> float:
        """Returns the number of the axis that belongs to a position, or lies just below its cost.

        Real numbers have six significant digits, so that what is printed is what was checked.
        """
        low, high = self.position(self.smallest), self.position(self.largest)
        position = min(max(position, min(low, high)), max(low, high))
        if self.integer:
            x = float(math.floor(math.exp(-position) * (1 + 1e-12)))
        else:
            x = round_up(math.exp(position))
        return min(max(x, self.smallest), self.largest)

    def is_last(self, x: float, cheaper: bool) -> bool:
        """Whether no number of the axis is cheaper, or dearer."""
        return x == (self.smallest if self.integer == cheaper else self.largest)


class Point(NamedTuple):
    """A number and log(cost / budget)."""

    x: float
    excess: float


class Boundary(NamedTuple):
    """The two sides of the edge; one of them is None where all numbers are on the other side."""

    within: Point | None
    beyond: Point | None

    @property
    def side(self) -> Point:
        """The side within the budget, or the other one where there is none."""
        point = self.within or self.beyond
        if point is None:
            raise ValueError("This edge has no side.")
        return point

    def crossing(self, axis: Axis) -> float:
        """Returns about where the cost is the budget."""
        if (
            self.within is None
            or self.beyond is None
            or math.inf in (self.beyond.excess, -self.within.excess)
        ):
            return self.side.x
        high, low = self.beyond.excess, self.within.excess
        here, there = axis.position(self.beyond.x), axis.position(self.within.x)
        return axis.number(here + (there - here) * high / (high - low))

    def slope(self, axis: Axis) -> float:
        """Returns d log(cost) / d position across the edge; a typical one where it is unknown."""
        if self.within is None or self.beyond is None:
            return TYPICAL_SLOPE
        rise = self.within.excess - self.beyond.excess
        slope = rise / (axis.position(self.within.x) - axis.position(self.beyond.x))
        return slope if math.isfinite(slope) and slope < 0 else TYPICAL_SLOPE


def round_up(x: float) -> float:
    """Returns the smallest number of six significant digits that is at least x."""
    exponent = math.floor(math.log10(x)) - 5
    digits = math.ceil(x / 10.0**exponent * (1 - 1e-12))
    return float(f"{digits}e{exponent}")


def _excess(cost: float, budget: float) -> float:
    return math.log(cost / budget) if 0 < cost < math.inf else (-math.inf if cost <= 0 else cost)


def _between(axis: Axis, within: float, beyond: float, guess: float | None) -> float | None:
    """Returns a number strictly between two, or None where they are close enough.

    Args:
        axis: Where to look.
        within: A number within the budget.
        beyond: A number beyond it.
        guess: Position of the edge; None to halve what lies between.
    """
    low, high = axis.position(beyond), axis.position(within)
    if high - low <= axis.tolerance or (axis.integer and beyond - within <= 1):
        return None
    middle = (low + high) / 2
    if guess is None or not low < guess < high:
        guess = middle
    elif high - guess > axis.tolerance / 2:
        # Just to one side of the edge, then just to the other, to enclose it closely.
        guess += _MARGIN * axis.tolerance
    else:
        guess -= _MARGIN * axis.tolerance
    x = axis.number(guess)
    if axis.integer:
        return min(max(x, within + 1), beyond - 1)
    for candidate in (x, axis.number(middle)):
        if low < axis.position(candidate) < high:
            return candidate
    return None


def _outside(axis: Axis, point: Point, guess: float | None, stride: float) -> float:
    """Returns a number further towards the side that has not been seen."""
    direction = 1 if point.excess > 0 else -1
    here = axis.position(point.x)
    distance = stride
    if guess is not None:
        # A little beyond, so that the other side is seen.
        distance = min(abs(guess - here) * 1.01 + _MARGIN * axis.tolerance, stride)
    x = axis.number(here + direction * distance)
    if x == point.x:  # Neighbouring integers.
        x += direction * (-1 if axis.integer else 1)
    return x


def find_boundary(
    cost: Callable[[float], float],
    budget: float,
    axis: Axis,
    start: float,
    slope: float = TYPICAL_SLOPE,
) -> Boundary:
    """Returns the two sides of the edge between costs within the budget and beyond it.

    Guarantees:
        Both sides were evaluated: cost(within) <= budget < cost(beyond). They differ by the
        tolerance at most, or are neighbouring integers.

    Args:
        cost: Of a number; monotone along the axis as `Axis` says. Zero and infinity are allowed.
        budget: Positive.
        axis: Where to look.
        start: A guess.
        slope: A guess of d log(cost) / d log(x), of either sign.
    """
    edge, best, slope = Boundary(None, None), None, -abs(slope)
    stride, width, patience = 1.0, math.inf, _PATIENCE
    x: float | None = axis.number(axis.position(start))
    while x is not None:
        point = Point(x, _excess(cost(x), budget))
        if best is not None and math.isfinite(point.excess):
            rise, run = point.excess - best.excess, axis.position(x) - axis.position(best.x)
            slope = rise / run if rise * run < 0 else slope
        if math.isfinite(point.excess):
            if best is None or abs(point.excess) <= abs(best.excess):
                best = point
        edge = edge._replace(**{"within" if point.excess <= 0 else "beyond": point})
        guess = None if best is None else axis.position(best.x) - best.excess / slope
        if edge.within is None or edge.beyond is None:
            if axis.is_last(x, cheaper=edge.within is None):
                return edge
            near = point if best is not point else best
            x = _outside(axis, near, guess if best is point else None, stride)
            stride *= 2
            continue
        now = axis.position(edge.within.x) - axis.position(edge.beyond.x)
        patience = _PATIENCE if now <= width / 2 else patience - 1
        width = min(width, now)
        x = _between(axis, edge.within.x, edge.beyond.x, guess if patience > 0 else None)
    return edge
