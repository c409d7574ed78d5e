"""Random events whose probabilities are exponentials, exactly, and the discrete Laplace noise of
them (Canonne, Kamath and Steinke 2020).
"""

import decimal
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tfdp.noise.bits import Fill

# Uniforms nearer than this to a probability that was computed in float64 are compared with it
# exactly. `math.exp` of a rounded exponent below 1000 errs by less than 2^-42.
_MARGIN = 2.0**-32


def exp_bounds(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Returns bounds of exp(-exponent) that are about so many decimal digits apart.

    Args:
        exponent: Zero or positive.
        digits: At least 20.
    """
    if exponent == 0:
        return Fraction(1), Fraction(1)
    if exponent > 1000:
        return Fraction(0), Fraction(1, 2**1400)
    # Quotient and exponential of `decimal` are rounded correctly: each errs by less than one unit
    # of the last digit, and an error of the exponent is one of the exponential.
    context = decimal.Context(prec=digits)
    quotient = context.divide(
        decimal.Decimal(exponent.numerator), decimal.Decimal(exponent.denominator)
    )
    # The operator "-" would round to the digits of the thread, which are 28.
    value = Fraction(context.exp(context.minus(quotient)))
    error = value * (exponent + 1) * 2 / 10 ** (digits - 1)
    return value - error, value + error


def is_below(
    fill: Fill, word: int, probability: Callable[[int], tuple[Fraction, Fraction]]
) -> bool:
    """Returns whether a uniform number whose first 64 bits are `word` is below a probability.

    Args:
        fill: Writes further bits, as many as it takes.
        word: In 0 .. 2^64 - 1.
        probability: From a number of digits to bounds of the probability.
    """
    numerator, bits, digits = word, 64, 40
    while True:
        low, high = probability(digits)
        if Fraction(numerator + 1, 2**bits) <= low:
            return True
        if Fraction(numerator, 2**bits) >= high:
            return False
        numerator, bits, digits = numerator << 64 | _words(fill, 1), bits + 64, digits + 20


def bernoulli(fill: Fill, probability: Callable[[int], tuple[Fraction, Fraction]]) -> bool:
    """Returns True with a probability that is given by bounds, as in `is_below`."""
    return is_below(fill, _words(fill, 1), probability)


def bernoulli_exp(fill: Fill, exponent: Fraction) -> bool:
    """Returns True with probability exp(-exponent), exactly; the exponent is not negative."""
    word = _words(fill, 1)
    uniform, probability = word * 2.0**-64, math.exp(-min(float(exponent), 1000.0))
    if abs(uniform - probability) > _MARGIN:
        return uniform < probability
    return is_below(fill, word, lambda digits: exp_bounds(exponent, digits))


def uniform_below(fill: Fill, number: int) -> int:
    """Returns an integer that is uniform over 0 .. number - 1, exactly."""
    bits = (number - 1).bit_length()
    count = -(-bits // 64) or 1
    while True:
        value = _words(fill, count) >> (64 * count - bits)
        if value < number:
            return value


def discrete_laplace(fill: Fill, scale: Fraction) -> int:
    """Returns an integer x with probability proportional to exp(-|x| / scale), exactly.

    Args:
        fill: Writes random bits.
        scale: Positive, rational.

    References:
        Canonne, Kamath, Steinke 2020, arXiv:2004.00010, algorithm 2.
    """
    period, divisor = scale.numerator, scale.denominator
    while True:
        rest = uniform_below(fill, period)
        if not bernoulli_exp(fill, Fraction(rest, period)):
            continue
        periods = 0
        while bernoulli_exp(fill, Fraction(1)):
            periods += 1
        magnitude = (rest + period * periods) // divisor
        negative = uniform_below(fill, 2)
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def _words(fill: Fill, count: int) -> int:
    words = np.empty(count, np.uint64)
    fill(words)
    return int.from_bytes(words.tobytes(), "little")
