"""Integers from the discrete Gaussian distribution, exactly (Canonne, Kamath and Steinke 2020)."""

import math
from fractions import Fraction

import numpy as np

from tfdp.noise.bits import Fill
from tfdp.noise.exponential import exp_bounds, is_below

# How many proposals are worked on at once: few enough to stay in the processor's cache.
_BLOCK = 2**14
# Uniforms nearer than this to a probability that was computed in float64 are compared with it
# exactly. It must be no smaller than the error, which is below 2^-39 (`DiscreteGaussian._accept`).
_MARGIN = 2.0**-32
_SMALLEST_VARIANCE, _LARGEST_VARIANCE = Fraction(1, 2**40), Fraction(2**100)


class DiscreteGaussian:
    """The distribution over the integers with P(x) proportional to exp(-x^2 / (2 variance)).

    With a power of two t and blocks of t magnitudes, a proposal is

        x = +-(u + t v),  u uniform over 0 .. t - 1,  v geometric, P(v) = 2^-(v + 1),

    all of them plain bits, without -0, and it is kept with probability

        2^v exp(-x^2 / (2 variance)) / c <= 1,

    c being a rational number of the size of the largest such value. That is rejection, as in
    algorithm 3 of the paper, from proposals that need no Bernoulli trials of their own. There is
    one comparison of a uniform with an exponential, where the paper's Laplace proposals make
    several.

    Guarantees:
        The distribution is exact: no draw depends on the rounding of a floating-point number.
        A comparison is made in float64 if the uniform is further from the probability than float64
        can err. Otherwise it is made in rational arithmetic, with as many bits as it takes.

    Args:
        variance: The parameter of the exponential, which is not quite the variance of the
            distribution where it is small; between 2^-40 and 2^100.

    Raises:
        TypeError: `variance` is not a Fraction or an integer.
        ValueError: it is out of range.

    Example:
        >>> from tfdp.noise.bits import system_fill
        >>> DiscreteGaussian(Fraction(1, 30)).draw(system_fill, 3).shape
        (3,)

    References:
        Canonne, Kamath, Steinke 2020, arXiv:2004.00010, algorithms 1 to 3.
    """

    def __init__(self, variance: Fraction | int):
        if isinstance(variance, bool) or not isinstance(variance, (int, Fraction)):
            raise TypeError(
                "variance must be a fractions.Fraction or an integer, so that it is exact. "
                f"Received: variance={variance!r}."
            )
        if not _SMALLEST_VARIANCE <= variance <= _LARGEST_VARIANCE:
            raise ValueError(
                "variance must be at least 2^-40 and at most 2^100. Received: "
                f"variance={float(variance)!r}."
            )
        self._variance = Fraction(variance)
        # A block is 0.6 to 1.2 standard deviations wide, so at least half of the proposals are
        # kept.
        self._log_block = 0
        while 4**self._log_block < Fraction(9, 25) * self._variance:
            self._log_block += 1
        square = float(4**self._log_block / self._variance)
        largest = math.exp(max(v * math.log(2) - v * v * square / 2 for v in range(1, 9)))
        # With such blocks the maximum is at v = 0, 1 or 2. It is rounded up by more than its
        # possible error.
        self._scale = Fraction(max(64, math.floor(64 * largest + 1e-6) + 1), 64)

    def draw(self, fill: Fill, size: int) -> np.ndarray:
        """Returns int64 [size], independent draws from bits that `fill` writes.

        Bits that were written are not used again; how many are needed depends on the draws.
        """
        result = np.empty(size, np.int64)
        done = 0
        while done < size:
            kept = self._accept(fill, min(_BLOCK, 2 * (size - done) + 16))[: size - done]
            result[done : done + len(kept)] = kept
            done += len(kept)
        return result

    def _accept(self, fill: Fill, count: int) -> np.ndarray:
        """Returns what is kept of `count` proposals."""
        words = np.empty((2, count), np.uint64)
        fill(words)
        # From the lowest bit up: u, the sign, and v zeros before a one.
        proposal = words[0].view(np.int64)
        u = proposal & ((1 << self._log_block) - 1)
        negative = (proposal >> self._log_block) & 1
        rest = (words[0] >> np.uint64(self._log_block + 1)).view(np.int64)
        power, v = _geometric(fill, rest, 63 - self._log_block)
        magnitude = u + (v << self._log_block)

        # The exponent g errs by less than 5 g / 2^53. Because 2^v exp(-g) is at most c, g times the
        # probability is below 1 + v, and where v is above 1023 the product is not a number: an
        # error below 2^-40. All other roundings, an `np.exp` that is off by 1000 units in the last
        # place included, add less than that.
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            square = np.square(magnitude.astype(np.float64))
            probability = np.exp(square * float(-1 / (2 * self._variance)))
            probability *= power
            probability *= float(1 / self._scale)
        uniform = (words[1] >> np.uint64(11)).view(np.int64) * 2.0**-53
        uniform -= probability
        kept = uniform < 0
        for i in np.flatnonzero(~(np.abs(uniform) > _MARGIN)):
            kept[i] = self._decide(fill, int(magnitude[i]), int(v[i]), int(words[1, i]))
        kept &= (magnitude != 0) | (negative == 0)
        magnitude *= 1 - 2 * negative
        return magnitude[kept]

    def _decide(self, fill: Fill, magnitude: int, v: int, word: int) -> bool:
        """Returns whether a uniform whose first 64 bits are `word` is below the probability."""
        return is_below(fill, word, lambda digits: self._probability(magnitude, v, digits))

    def _probability(self, magnitude: int, v: int, digits: int) -> tuple[Fraction, Fraction]:
        """Returns bounds of the probability that a proposal is kept, to so many digits."""
        low, high = exp_bounds(Fraction(magnitude * magnitude) / (2 * self._variance), digits)
        factor = 2**v / self._scale
        return low * factor, high * factor


def _geometric(fill: Fill, rest: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (2^v, v), v being how many zeros come before the first one in a stream of bits.

    Args:
        fill: Writes more bits where the first ones are all zero.
        rest: int64, the first `width` bits, the first one lowest.
        width: Below 64.
    """
    lowest = rest & -rest
    power = lowest.astype(np.float64)
    # The exponent of a power of two is its logarithm.
    v = (power.view(np.int64) >> 52) - 1023
    zeros = np.flatnonzero(lowest == 0)
    if len(zeros):
        more = np.empty(len(zeros), np.uint64)
        fill(more)
        power[zeros], v[zeros] = _geometric(fill, (more >> np.uint64(1)).view(np.int64), 63)
        power[zeros] *= 2.0**width
        v[zeros] += width
    return power, v
