"""From Renyi differential privacy to (epsilon, delta) and back, without loss.

A divergence of order a that is at most rdp implies exactly those (epsilon, delta) that hold for all
pairs of Bernoulli distributions with that divergence (Asoodeh et al. 2021, arXiv:2008.06529,
section III). The reason is that the event on which any P and Q differ most makes such a pair of
them. If this event has probability p under P and r under Q, then the worst pairs are those with

    p^a r^(1 - a) + (1 - p)^a (1 - r)^(1 - a) = exp((a - 1) rdp),    r < p.

They give delta = p - e^epsilon r, and epsilon = log((p - delta) / r), with one maximum over p.
Without the second term of the equation, the maximum is the bound of Canonne, Kamath and Steinke
2020 (arXiv:2004.00010, proposition 12). It is a little larger. The search for p begins there:

    epsilon = rdp + log(1 - 1/a) - log(delta a) / (a - 1).
"""

import math
from collections.abc import Callable

# How far off the search for p may end, relative to the result. It is added to the result.
_TOLERANCE = 1e-12
# The odds of p are searched from exp(-_LOWEST) to exp(_HIGHEST).
_LOWEST, _HIGHEST = 700.0, 30.0  # Where p is still below 1.
# For divergences larger than this the search is not worth its time, and a closed form is used.
_HUGE = 1e9
# For divergences smaller than this the search would see only its own rounding errors. There closed
# forms are used, and Pinsker's inequality: delta is at most sqrt(rdp / 2), whatever epsilon is.
_TINY = 1e-16


def _loss(order: float, rdp: float, p: float) -> tuple[float, float]:
    """Returns d = log(p / r) of the worst pair with this p, and d log(r) / d log(p)."""
    a, log_p, moment = order - 1, math.log(p), (order - 1) * rdp
    # This is Newton's method for a convex function, begun from above, so that no iterate is too
    # small, except for rounding.
    d = (moment - log_p) / a
    while True:
        r = p * math.exp(-d)
        w = math.log1p(-p * math.expm1(-d) / (1 - p))  # log((1 - r) / (1 - p))
        second = (1 - p) * math.exp(-a * w)
        if moment > 1:
            first = log_p + a * d
            total = 1 + second * math.exp(-first)  # Of both terms, relative to the first.
            excess = first + math.log(total) - moment
            slope = a * (1 - second * math.exp(-first) * r / (1 - r)) / total
        else:
            # Both terms together are 1 plus something that may be tiny.
            beyond = p * math.expm1(a * d) + (1 - p) * math.expm1(-a * w)
            excess = math.log1p(beyond) - moment
            slope = a * (p * math.exp(a * d) - second * r / (1 - r)) / (1 + beyond)
        if excess <= 0 or slope <= 0 or excess <= 1e-15 * slope * d:
            break
        d -= excess / slope
    both = d + math.log1p(-p * math.expm1(-d) / (1 - p))
    if both <= 0:
        return 0.0, 1.0
    return d, order / a * math.expm1(-a * both) / math.expm1(-order * both)


def _maximum(value_and_slope: Callable[[float], tuple[float, float]], start: float) -> float:
    """Returns the only maximum of a function, searched from `start` on, or a little more."""
    x, (value, slope) = start, value_and_slope(start)
    before, slope_before, step = x, slope, math.copysign(0.01, slope)
    while slope * step > 0:
        if not -_LOWEST < x < _HIGHEST:
            return value
        before, slope_before = x, slope
        x = min(max(x + step, -_LOWEST), _HIGHEST)
        value, slope = value_and_slope(x)
        step *= 4
    # Regula falsi in the variant of Illinois: the slope at an end that stays is halved.
    for _ in range(200):
        if abs(slope * (x - before)) <= _TOLERANCE * min(abs(value), 1e3):
            break
        middle = (before * slope - x * slope_before) / (slope - slope_before)
        value, slope_there = value_and_slope(middle)
        if slope_there * slope <= 0:
            before, slope_before = x, slope
        else:
            slope_before /= 2
        x, slope = middle, slope_there
    return value + abs(slope * (x - before))


def _odds(p: float) -> float:
    return min(max(math.log(p) - math.log1p(-p), -_LOWEST), _HIGHEST)


def _simple_epsilon(order: float, rdp: float, delta: float) -> float:
    return rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def epsilon_at_order(order: float, rdp: float, delta: float) -> float:
    """Returns the smallest epsilon that a divergence of this order gives for this delta.

    Args:
        order: a, above 1, perhaps infinite.
        rdp: Divergence, at least 0, perhaps infinite.
        delta: In (0, 1).
    """
    if not math.isfinite(rdp):
        return math.inf
    if rdp == 0:
        return 0.0
    if order == math.inf:
        # Randomized response: delta = (e^rdp - e^epsilon) / (e^rdp + 1).
        excess = delta * (1 + math.exp(-rdp))
        return max(0.0, rdp + math.log1p(-excess)) if excess < 1 else 0.0
    if rdp > _HUGE:
        return _simple_epsilon(order, rdp, delta)
    if rdp < _TINY:
        if delta >= math.sqrt(rdp / 2):
            return 0.0
        return max(0.0, _simple_epsilon(order, rdp, delta))

    def epsilon(log_odds: float) -> tuple[float, float]:
        # Of the part of 1 - delta by which p exceeds delta.
        part = 1 / (1 + math.exp(-log_odds))
        p = min(delta + (1 - delta) * part, 1 - 2**-53)
        d, slope = _loss(order, rdp, p)
        excess = (1 - delta) * part / p
        # log(p) moves by (1 - part) excess.
        return d + math.log(excess), (1 - part) * (1 - excess * slope)

    part = min((order - 1) * delta / (1 - delta), 0.5)
    return max(0.0, min(_maximum(epsilon, _odds(part)), _simple_epsilon(order, rdp, delta)))


def log_odds_of_delta(order: float, rdp: float, epsilon: float) -> float:
    """Returns log(delta / (1 - delta)) of the smallest delta for this epsilon.

    Where delta is nearly 1 it is not exact, but still the larger the worse the order.

    Args:
        order: a, above 1, perhaps infinite.
        rdp: Divergence, at least 0, perhaps infinite.
        epsilon: At least 0 and finite.
    """
    if not math.isfinite(rdp):
        return math.inf
    if rdp == 0 or (order == math.inf and epsilon >= rdp):
        return -math.inf
    if order == math.inf:
        largest = math.log(-math.expm1(epsilon - rdp)) - math.log1p(math.exp(-rdp))
        return min(_HIGHEST, largest - math.log(max(-math.expm1(largest), 1e-300)))
    simple = (order - 1) * (rdp - epsilon + math.log1p(-1 / order)) - math.log(order)
    if rdp > _HUGE:
        return _log_odds(simple, simple)
    if rdp < _TINY:
        # For so small a delta the odds are equal to the delta.
        return min(simple, math.log(rdp / 2) / 2)

    def log_delta(log_odds: float) -> tuple[float, float]:
        p = 1 / (1 + math.exp(-log_odds))
        d, slope = _loss(order, rdp, p)
        if d <= epsilon:  # p is far too large.
            return -math.inf, -1.0
        share = -math.expm1(epsilon - d)
        return math.log(p) + math.log(share), (1 - p) * (1 - (1 - share) * slope) / share

    start = _odds(math.exp(min(max(simple + math.log(order), -_LOWEST), -math.log(2))))
    exact = _maximum(log_delta, start)
    return _log_odds(min(exact, simple) if exact > -math.inf else min(simple, 0.0), simple)


def _log_odds(log_delta: float, simple: float) -> float:
    """Returns log(delta / (1 - delta)); where delta is nearly 1 it grows with `simple` instead."""
    if log_delta > -math.exp(1 - _HIGHEST):
        return _HIGHEST + max(simple, 0.0)
    return log_delta - math.log(-math.expm1(log_delta))


def delta_at_order(order: float, rdp: float, epsilon: float) -> float:
    """Returns the smallest delta that a divergence of this order gives for this epsilon.

    Args:
        order: a, above 1, perhaps infinite.
        rdp: Divergence, at least 0, perhaps infinite.
        epsilon: At least 0 and finite.
    """
    return delta_of_log_odds(log_odds_of_delta(order, rdp, epsilon))


def delta_of_log_odds(log_odds: float) -> float:
    """Returns delta, rounded up to 1 where it is nearly so."""
    if log_odds > _HIGHEST - 1:
        return 1.0
    return math.exp(log_odds - math.log1p(math.exp(log_odds)))
