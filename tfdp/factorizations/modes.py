"""The inverse of a factor as a sum of filters of which each remembers one number.

With p(x) = prod_i (1 - theta_i x), real and distinct, and no more coefficients in r than in p,

    C^-1(x) = r(x) / p(x) = 1 + sum_i w_i x / (1 - theta_i x),   w_i = R(theta_i) / P'(theta_i),

where P(v) = v^d p(1 / v) and R(v) = v^d r(1 / v). So the noise is z_t + sum_i w_i s_i, and s_i
becomes s_i + (z_t - (1 - theta_i) s_i). Where theta_i is near 1 a step adds little to s_i, and what
it rounds off decays as s_i does. In the recursion of p and r it grows with the product of all such
filters.
"""

import decimal
import functools
import math
from typing import NamedTuple

import numpy as np

from tfdp.factorizations.toeplitz import ToeplitzFactorization

_DIGITS = 80
# Newton's method doubles the digits of a root in each turn, once it is close.
_TURNS = 64
# Roots are exact enough where their product has the coefficients to so many digits.
_SAME_TO = decimal.Decimal(10) ** -40
_MOST = 16


class Modes(NamedTuple):
    """One number for each mode.

    Attributes:
        decays: 1 - theta_i.
        weights: w_i.
    """

    decays: tuple[float, ...]
    weights: tuple[float, ...]


@functools.lru_cache(maxsize=64)
def modes(factorization: ToeplitzFactorization) -> Modes | None:
    """Returns the modes of C^-1, correctly rounded; None where it has no such form, which is also
    so where two roots are too close to be told apart, or there are more than 16.
    """
    count = len(factorization.numerator) - 1
    if not 0 < count <= _MOST or len(factorization.denominator) > count + 1:
        return None
    approximate = np.roots(factorization.numerator)
    if len(approximate) != count or np.any(np.iscomplex(approximate)):
        return None
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        p = [decimal.Decimal(value) for value in factorization.numerator]
        r = [decimal.Decimal(value) for value in factorization.denominator]
        r += [decimal.Decimal(0)] * (count + 1 - len(r))
        slope = [(count - k) * value for k, value in enumerate(p[:-1])]
        roots = [_root(p, slope, float(value)) for value in np.real(approximate)]
        zero, product = decimal.Decimal(0), [decimal.Decimal(1)]
        for root in roots:
            product = [
                a - root * b for a, b in zip([*product, zero], [zero, *product], strict=True)
            ]
        largest = max(map(abs, p))
        if len(set(roots)) < count:
            return None
        if any(abs(a - b) > _SAME_TO * largest for a, b in zip(product, p, strict=True)):
            return None
        decays = [float(1 - root) for root in roots]
        weights = [float(_at(r, root) / _at(slope, root)) for root in roots]
    return Modes(tuple(decays), tuple(weights))


def _at(coefficients: list[decimal.Decimal], v: decimal.Decimal) -> decimal.Decimal:
    value = decimal.Decimal(0)
    for coefficient in coefficients:
        value = value * v + coefficient
    return value


def _root(p: list[decimal.Decimal], slope: list[decimal.Decimal], near: float) -> decimal.Decimal:
    """Returns where Newton's method comes to from near a root of a polynomial."""
    root = decimal.Decimal(near)
    for _ in range(_TURNS):
        at_root = _at(slope, root)
        if not at_root:  # At most at a double root, and its product is not that of the others.
            break
        root -= _at(p, root) / at_root
    return root


def rounding_of(factorization: ToeplitzFactorization, found: Modes, num_steps: int) -> float:
    """Returns by how much rounding changes C y, in standard deviations of z and units of rounding.

    An estimate, for roundings that are independent of each other: of s_i in each step, of the sums
    that y is, and, once for all, of the coefficients. C changes what is rounded off y; and what is
    rounded off s_i by C(x) w_i x / (1 - theta_i x).
    """
    from scipy import signal

    column = factorization.column(num_steps)
    total, of_sum = 0.0, 1.0
    for decay, weight in zip(*found, strict=True):
        theta = 1 - decay
        once = signal.lfilter([1.0], [1.0, -theta], column)
        twice = signal.lfilter([1.0], [1.0, -theta], once)
        square = _geometric(theta * theta, num_steps)
        total += weight**2 * ((square + 1) * _squares(once) + decay**2 * _squares(twice))
        of_sum += weight**2 * square
    return math.sqrt(total + of_sum * _squares(column))


def _geometric(ratio: float, count: int) -> float:
    """Returns 1 + ratio + ... of so many terms."""
    if ratio == 1:
        return float(count)
    with np.errstate(over="ignore"):
        return float((1 - np.float64(ratio) ** count) / (1 - ratio))


def _squares(series: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.sum(np.square(series)))
