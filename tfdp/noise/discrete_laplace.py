"""Many draws of discrete Laplace noise at once, exactly."""

import functools
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tfdp.noise.bits import Fill
from tfdp.noise.exponential import exp_bounds, is_below

# Draws of this scale are below 2^62 but for a probability of exp(-1024).
LARGEST_SCALE = 2**52
_WORD = 32

Bounds = Callable[[int], tuple[Fraction, Fraction]]


def discrete_laplaces(fill: Fill, scale: Fraction, size: int) -> np.ndarray:
    """Returns int64 [size], independent, x with probability proportional to exp(-|x| / scale).

    That is a sign and a magnitude with P(magnitude >= k) = exp(-k / scale), drawn anew where they
    are -0. The binary digits of such a magnitude are independent: digit i is one with probability
    1 / (1 + exp(2^i / scale)). What is above the digits that are drawn so is again geometric. All
    probabilities are compared with as many random bits as it takes: none is rounded.

    Args:
        fill: Writes random bits.
        scale: Positive, at most 2^52.
        size: How many.

    Raises:
        ValueError: the scale is out of range.
    """
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(
            f"scale must be positive and at most 2^52. Received: scale={float(scale):g}. The noise "
            "would have too many digits: give more epsilon, or fewer numbers."
        )
    scale, result = Fraction(scale), np.empty(size, np.int64)
    missing = np.arange(size)
    while missing.size:
        magnitude = _geometric(fill, scale, missing.size)
        words = np.empty(missing.size, np.uint8)
        fill(words)
        negative = (words & 1).astype(np.bool_)
        kept = (magnitude != 0) | ~negative
        result[missing[kept]] = np.where(negative, -magnitude, magnitude)[kept]
        missing = missing[~kept]
    return result


def _geometric(fill: Fill, scale: Fraction, size: int) -> np.ndarray:
    """Returns int64 [size], x with P(x >= k) = exp(-k / scale)."""
    digits = 0
    while 2**digits < 4 * scale:
        digits += 1
    result = np.zeros(size, np.int64)
    for i in range(digits):
        one = functools.partial(_digit_bounds, Fraction(2**i) / scale)
        result |= _bernoullis(fill, one, size).astype(np.int64) << i
    more = functools.partial(_rest_bounds, Fraction(2**digits) / scale)
    left = np.arange(size)
    while left.size:
        left = left[_bernoullis(fill, more, left.size)]
        result[left] += 1 << digits
    return result


# A participant's noise has the same scales in every epoch.
_rest_bounds = functools.lru_cache(maxsize=64)(exp_bounds)


@functools.lru_cache(maxsize=1024)
def _digit_bounds(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Returns bounds of 1 / (1 + exp(exponent))."""
    low, high = exp_bounds(exponent, digits)
    return low / (1 + low), high / (1 + high)


def _bernoullis(fill: Fill, probability: Bounds, size: int) -> np.ndarray:
    """Returns bool [size], each true with this probability.

    Args:
        fill: Writes random bits.
        probability: From a number of digits to bounds of it; below one.
        size: How many.
    """
    low, high = (int(bound * 2**_WORD) for bound in probability(40))
    words = np.empty(size, np.uint32)
    fill(words)
    result = words < low
    for i in np.flatnonzero((words >= low) & (words <= high)):
        rest = np.empty(1, np.uint32)
        fill(rest)
        word = int(words[i]) << _WORD | int(rest[0])
        result[i] = is_below(fill, word, probability)
    return result
