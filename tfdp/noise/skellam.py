"""Integers from the Skellam distribution, exactly: differences of two Poisson numbers."""

import bisect
import functools
import math
from fractions import Fraction

import numpy as np

from tfdp.noise.bits import Fill

# The table has ten standard deviations. For more noise it would take minutes.
_SMALLEST_VARIANCE, LARGEST_VARIANCE = Fraction(1, 2**40), 2**28
# Of the first table: 64 bits that are compared, and as many as make them all but certain.
_PRECISION = 96
# Bits of intermediate results beyond those of a table.
_GUARD = 64


class Skellam:
    """The distribution of the difference of two Poisson numbers with equal means.

    P(x) = e^-m I_|x|(m), m being the variance and I the modified Bessel function. A magnitude is
    drawn by inversion: it is how many of the cumulative probabilities are below a uniform number.

    Guarantees:
        The distribution is exact. Cumulative probabilities are integers between proven bounds, in
        units of 2^-96. A uniform number of 64 bits that is as near to one as the bounds, or beyond
        the last, gets more bits. It is then compared with a table of more digits.

    Args:
        variance: m; between 2^-40 and 2^28.

    Raises:
        TypeError: `variance` is not a Fraction or an integer.
        ValueError: it is out of range.

    Example:
        >>> from tfdp.noise.bits import system_fill
        >>> Skellam(Fraction(1, 3)).draw(system_fill, 3).shape
        (3,)

    References:
        Skellam 1946, "The frequency distribution of the difference between two Poisson variates".
    """

    def __init__(self, variance: Fraction | int):
        if isinstance(variance, bool) or not isinstance(variance, (int, Fraction)):
            raise TypeError(
                "variance must be a fractions.Fraction or an integer, so that it is exact. "
                f"Received: variance={variance!r}."
            )
        if not _SMALLEST_VARIANCE <= variance <= LARGEST_VARIANCE:
            raise ValueError(
                "variance must be at least 2^-40 and at most 2^28. Received: "
                f"variance={float(variance)!r}."
            )
        self._variance = Fraction(variance)
        low, high = cumulative_bounds(self._variance, _PRECISION)
        shift = _PRECISION - 64
        self._low = np.array([bound >> shift for bound in low], np.uint64)
        self._high = np.array([min(bound >> shift, 2**64 - 1) for bound in high], np.uint64)

    def draw(self, fill: Fill, size: int) -> np.ndarray:
        """Returns int64 [size], independent draws from bits that `fill` writes.

        Bits that were written are not used again.
        """
        words, signs = np.empty(size, np.uint64), np.empty(size, np.uint8)
        fill(words)
        fill(signs)
        # How many bounds may be below, and how many are for certain.
        magnitude = np.searchsorted(self._low, words, side="right")
        certain = np.searchsorted(self._high, words, side="left")
        for i in np.flatnonzero((magnitude != certain) | (magnitude == len(self._low))):
            magnitude[i] = self._decide(fill, int(words[i]))
        return np.where(signs & 1, -magnitude, magnitude)

    def _decide(self, fill: Fill, word: int) -> int:
        """Returns the magnitude for a uniform number whose first 64 bits are `word`."""
        number, bits = word, 64
        while True:
            more = np.empty(1, np.uint64)
            fill(more)
            number, bits = number << 64 | int(more[0]), bits + 64
            low, high = cumulative_bounds(self._variance, bits + 32)
            certain = bisect.bisect_right(high, number << 32)
            possible = bisect.bisect_left(low, (number + 1) << 32)
            if certain == possible < len(low):
                return certain


@functools.lru_cache(maxsize=8)
def skellam(variance: Fraction) -> Skellam:
    """Returns the distribution, whose table is made once."""
    return Skellam(variance)


def cumulative_bounds(variance: Fraction, precision: int) -> tuple[list[int], list[int]]:
    """Returns bounds of P(|x| <= 0), P(|x| <= 1), ... in units of 2^-precision.

    With r_k = I_(k+1) / I_k, the recurrence of Bessel functions is r_(k-1) = 1 / (2 k / m + r_k).
    It forgets where it began: from 0 <= r <= 1, far in the tail, two bounds approach each other.

    Args:
        variance: m.
        precision: Bits. The last probability is within about 2^-precision of one.
    """
    digits = precision + _GUARD
    one = 1 << digits
    last = _tail(float(variance), precision)
    begin = last + precision + math.ceil(5 * math.sqrt(variance))
    low, high = 0, one
    ratios = [(low, high)] * (last + 1)
    double, divisor = 2 * variance.denominator << digits, variance.numerator
    for k in range(begin, 0, -1):
        term = k * double // divisor
        low, high = (one << digits) // (term + 1 + high), -(-(one << digits) // (term + low))
        if k - 1 <= last:
            ratios[k - 1] = low, high

    weight = total = (one, one)
    totals = [total]
    for below, above in ratios[:last]:
        weight = weight[0] * below >> digits, -(-weight[1] * above >> digits)
        total = total[0] + 2 * weight[0], total[1] + 2 * weight[1]
        totals.append(total)
    # Ratios fall as k grows, so that the rest is below a geometric series.
    above = ratios[last][1]
    rest = -(-weight[1] * above // (one - above))
    most = total[1] + 2 * rest
    return (
        [(bound << precision) // most for bound, _ in totals],
        [min(1 << precision, -(-(bound << precision) // total[0])) for _, bound in totals],
    )


def _tail(variance: float, bits: int) -> int:
    """Returns a magnitude that is exceeded with probability 2^-bits at most, about."""

    def exponent(size: float) -> float:
        # Chernoff's bound, which has a closed form.
        u = size / variance
        return variance * (u * math.asinh(u) + 1 - math.hypot(1, u))

    low, high = 0, 1
    while exponent(high) < bits * math.log(2):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exponent(middle) >= bits * math.log(2) else (middle, high)
    return high
