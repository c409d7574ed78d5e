"""The best order of a Renyi curve, found among all orders above one."""

import math
from collections.abc import Callable

import numpy as np

# Distances from order 1 beyond which neither epsilon nor delta changes any more.
_LOWEST, _HIGHEST = 1e-9, 1e15
# Two ends are near enough to show what lies between them if their ratio, and the relative
# difference of their values, are below the first two numbers. The third is the ratio of a step.
_NEAR, _ALIKE, _STEP = 1.07, 0.02, 1.03
_MOST_STEPS = 100
# Relative distance between the two orders from which a slope is computed.
_APART = 2e-6
# The search ends when the tangents show that the value can improve by at most this fraction.
_TOLERANCE = 2e-7


def minimize_over_orders(
    values_at: Callable[[np.ndarray], np.ndarray],
    *,
    inverse: bool,
    first: float = 8.0,
    factor: float = 4.0,
) -> tuple[float, float]:
    """Returns the order above 1 with the smallest value, and that value.

    Guarantees:
        The value is that of the returned order, whatever the search may have missed. Where it is
        convex as a function of x, it is the smallest up to a relative 1e-6.

    Edge cases:
        Where all values are infinite, so is what is returned.

    Args:
        values_at: A function from a vector of orders to as many values, perhaps infinite at large
            orders.
        inverse: Whether x = 1 / (order - 1), and not order - 1. An epsilon is nearly convex in the
            former, the logarithm of a delta in the latter. With K(a) convex, so are
            x (K(1 + 1/x) + log(1/delta)) and K(1 + x) - x epsilon.
        first: The order at which the search begins.
        factor: Ratio of the first orders' distances from 1, above 1.
    """
    best = (math.inf, 1 + _LOWEST)

    def tangent(distance: float) -> tuple[float, float, float]:
        """Returns x, the value, and the slope there."""
        nonlocal best
        orders = 1 + distance * np.array([1.0, 1 + _APART])
        value, beyond = map(float, values_at(orders))
        best = min(best, (value, float(orders[0])), (beyond, float(orders[1])))
        x, x_beyond = 1 / (orders - 1) if inverse else orders - 1
        slope = (beyond - value) / (x_beyond - x) if math.isfinite(beyond) else math.inf
        if not math.isfinite(slope):  # Towards smaller orders.
            slope = -math.inf if inverse else math.inf
        return float(x), value, float(slope)

    # A bracket: the slope is negative at its left end and positive at its right one.
    distance = first - 1
    ends = [tangent(distance)]
    up = (ends[0][2] < 0) != inverse
    while (ends[-1][2] < 0) == (ends[0][2] < 0):
        if not _LOWEST < distance < _HIGHEST or best[0] == 0:
            return best[1], best[0]
        distance = min(max(distance * (factor if up else 1 / factor), _LOWEST), _HIGHEST)
        factor = max(factor, min(factor**2, 4.0))
        ends = [ends[-1], tangent(distance)]
    left, right = sorted(ends)
    # An epsilon may be tiny and still matter. A logarithm near zero is not special.
    least = 0.0 if inverse else 1.0
    for number in range(_MOST_STEPS):
        (a, value_a, slope_a), (b, value_b, slope_b) = left, right
        alike = max(value_a, value_b) - best[0] <= _ALIKE * max(abs(best[0]), least)
        near = b / a < _NEAR and alike
        if math.isfinite(slope_a) and math.isfinite(slope_b):
            # The point at which the tangents meet.
            x = (value_a - value_b + slope_b * b - slope_a * a) / (slope_b - slope_a)
            x = min(max(x, a), b)
            possible = value_a + slope_a * (x - a)
            if near and best[0] - possible <= _TOLERANCE * max(abs(best[0]), least):
                break
            if not near or number % 2 == 0:
                # The lowest point of the cubic that has the values and slopes of both ends.
                secant = (value_b - value_a) / (b - a)
                third = slope_a + slope_b - 3 * secant
                root = math.sqrt(max(0.0, third * third - slope_a * slope_b))
                x = b - (b - a) * (slope_b + root - third) / (slope_b - slope_a + 2 * root)
            if not near:
                # Tangents at far points show little, so a point close to one end is moved inwards.
                step = min(_STEP, (b / a) ** 0.4)
                x = min(max(x, a * step), b / step) if number % 3 < 2 else math.sqrt(a * b)
        else:
            x = math.sqrt(a * b)
        if not a * (1 + _APART) < x < b / (1 + _APART):
            break
        new = tangent(1 / x if inverse else x)
        if new[2] == 0:
            break
        left, right = (new, right) if new[2] < 0 else (left, new)
    return best[1], best[0]
