"""Standard normal draws from random words (Box and Muller 1958)."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.numerics.shared_graphs import traced_once

# How many words the radius and the angle of a pair of draws take.
_RADIUS_WORDS = {tf.float32: 2, tf.float64: 3}
_ANGLE_WORDS = {tf.float32: 1, tf.float64: 2}
# The number of low bits of a word that are used, and their mask.
_BITS = 31
_LOW = 2**_BITS - 1
# The numbers of 31 bits whose product with this factor, modulo 2^31, begins with a given number of
# zeros lie evenly between 0 and 2^31. The reason is that they are the first multiples of a golden
# section.
_SPREAD = pow(round(2**_BITS * (math.sqrt(5) - 1) / 2) | 1, -1, 2**_BITS)
# The number of terms of power series, for atanh at 1 / 3 and for the sine at pi / 2. There are so
# many that the terms left out are less than half a unit in the last place.
_ATANH_TERMS = 17
_SINE_TERMS = 12


def _interpolate(function: Callable[..., Any], degree: int, low: float, high: float) -> list[float]:
    polynomial = np.polynomial.Chebyshev.interpolate(function, degree, [low, high])
    return polynomial.convert(kind=np.polynomial.Polynomial).coef.tolist()


# -2 ln(1 - v / 2) / v from 0 to 1, within 2e-7, and sin(pi t) / t from 0 to 1/2, within 1e-8, both
# relatively: powers of v and of t^2. Chebyshev's points are never 0.
_LOG_POLYNOMIAL = _interpolate(lambda v: -2 * np.log1p(-v / 2) / v, 7, 0, 1)
_SINE_POLYNOMIAL = _interpolate(lambda s: np.sin(np.pi * s**0.5) / s**0.5, 4, 0, 0.25)


def words_per_pair(dtype: tf.DType) -> int:
    """Returns how many 32-bit words two draws are made of: 3 in float32, 5 in float64.

    Raises:
        TypeError: `dtype` is neither.
    """
    dtype = tf.as_dtype(dtype)
    if dtype not in _RADIUS_WORDS:
        raise TypeError(
            f"Noise is drawn in float32 or float64. Received: dtype={dtype.name}. Draw it in "
            "float32 and cast."
        )
    return _RADIUS_WORDS[dtype] + _ANGLE_WORDS[dtype]


def normals_from_words(words: tf.Tensor, dtype: tf.DType, rows: int | None = None) -> tf.Tensor:
    """Returns standard normal draws, two from every column of words.

        (+-r cos theta, r sin theta),  r^2 / 2 = k ln 2 - ln(1 - v / 2)

    k is geometric, P(k >= j) = 2^-j, and v is uniform. So r^2 / 2 is exponential. Half of the time
    it is at least ln 2, and then it is ln 2 and an exponential again. theta, with its sign, is
    between -pi / 2 and pi / 2. In float32 (float64) v has 31 (62) bits, k ends at 62 (93), and
    theta has 32 (63) bits. Draws reach 9.2 (11.3) standard deviations. Everything is element-wise:
    under XLA it is one loop, fused with what is done to the result.

    Guarantees:
        Each draw is within 4e-7 (float32) or 8e-16 (float64), relatively, of the exact function of
        its words. No draw is zero, infinite or NaN. A true normal pair has k beyond its end with
        probability 2^-62 (2^-93). From k = 31 on (probability 2^-31) its bits are those of v, of
        which it leaves 62 - k (93 - k) free, evenly spread.

    Args:
        words: uint32 [words_per_pair(dtype), h, ...], uniform and independent.
        dtype: float32 or float64.
        rows: 2 h (the default) or 2 h - 1.

    Returns:
        [rows, ...]; draws in rows i and i + h are pairs.

    References:
        Box, Muller 1958, "A note on the generation of random normal deviates".
    """
    dtype = tf.as_dtype(dtype)
    columns = tf.unstack(tf.bitcast(words, tf.int32), words_per_pair(dtype))
    first, second = _pairs(columns, dtype)
    if rows is not None and rows % 2:
        # Slicing the result would keep XLA from using vector instructions.
        _, second = _pairs([column[:-1] for column in columns], dtype)
    return tf.concat([first, second], 0)


@tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
def compiled_normals(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """As `normals_from_words`, compiled by XLA."""
    return normals_from_words(words, dtype)


def uniforms_from_words(words: tf.Tensor) -> tf.Tensor:
    """Returns uniform draws whose small ones have as many digits as large ones.

        u = 2^-k (1 - v / 2), k and v as in `normals_from_words` for float64

    Guarantees:
        Draws are in [2^-94, 1]: a quantile function sees its lower tail down to there.

    Args:
        words: uint32 [3, ...], uniform and independent; the highest bit of each is not used.

    Returns:
        float64 [...].
    """
    columns = tf.unstack(tf.bitcast(words, tf.int32), _RADIUS_WORDS[tf.float64])
    v = _fraction(columns[1:], tf.float64)
    # A power of two by its bits: exact, whatever compiles it.
    exponent = 1023 - tf.cast(_zeros(columns, tf.float64), tf.int64)
    power = tf.bitcast(tf.bitwise.left_shift(exponent, tf.constant(52, tf.int64)), tf.float64)
    return power * (1 - v / 2)


@functools.partial(traced_once, any_shapes=True)
def _pairs(columns: list[tf.Tensor], dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    radius_words, angle_words = columns[: _RADIUS_WORDS[dtype]], columns[_RADIUS_WORDS[dtype] :]
    radius = tf.sqrt(_twice_exponential(radius_words, dtype))
    # In half turns: theta = pi t.
    t = _signed_fraction(angle_words, dtype)
    # 1/2 - |t|, without a difference of rounded numbers, since cos(pi t) is its sine.
    negative = tf.bitwise.right_shift(angle_words[0], 31)  # 0 or -1: the shift keeps the sign.
    rest = _signed_fraction([word ^ negative ^ _LOW for word in angle_words], dtype)
    rest = tf.where(radius_words[1] < 0, -rest, rest)
    return radius * _sine(rest, dtype), radius * _sine(t, dtype)


def _twice_exponential(words: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns 2 k ln 2 - 2 ln(1 - v / 2). The highest bit of each word has no part in it."""
    v = _fraction(words[1:], dtype)
    k = tf.cast(_zeros(words, dtype), dtype)
    return v * _twice_log(v, dtype) + k * (2 * math.log(2))


def _zeros(words: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns k, the number of zeros with which the low bits of the first word begin. If all of
    them are zeros, the low bits of the other words, spread, continue the count, from the last word
    to the first.
    """
    number = tf.cast(_highest(words[0] & _LOW), dtype)
    for k, word in enumerate(reversed(words[1:]), start=1):
        spread = tf.bitcast(tf.bitcast(word, tf.uint32) * _SPREAD, tf.int32) & _LOW
        number += tf.cast(_highest(spread), dtype) * 2.0 ** (-_BITS * k)
    # The exponent of the number's binary form counts them, except for zero.
    integer, digits, bias = (tf.int32, 23, 127) if dtype == tf.float32 else (tf.int64, 52, 1023)
    exponent = tf.bitwise.right_shift(tf.bitcast(number, integer), tf.constant(digits, integer))
    return tf.minimum(_BITS - 1 + bias - exponent, _BITS * len(words))


def _highest(word: tf.Tensor) -> tf.Tensor:
    """Returns a number >= 0 with the same highest bit, which rounding leaves as it is."""
    return word & tf.bitwise.invert(tf.bitwise.right_shift(word, 1))


def _twice_log(v: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns -2 ln(1 - v / 2) / v for v in (0, 1)."""
    if dtype == tf.float32:
        # XLA would not fuse a quotient into the loop; it would write it to memory.
        return _series(_LOG_POLYNOMIAL, v, dtype)
    # 4 atanh(a) = 4 (a + a^3 / 3 + a^5 / 5 + ...) for a = v / (4 - v)
    a = v / (4 - v)
    return _series([4 / (2 * k + 1) for k in range(_ATANH_TERMS)], a * a, dtype) / (4 - v)


def _fraction(words: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns a number in (0, 1), made of the low bits of each word. Half a unit of the last bit is
    added.
    """
    fraction = tf.constant(0.5, dtype)
    for word in reversed(words):
        fraction = tf.cast(word & _LOW, dtype) * 2.0**-_BITS + fraction * 2.0**-_BITS
    return fraction


def _signed_fraction(words: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns a number in (-1/2, 1/2), which is never zero; the sign is the first word's."""
    return tf.cast(words[0], dtype) * 2.0**-32 + _fraction(words[1:], dtype) * 2.0**-32


def _sine(t: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns sin(pi t) for t in (-1/2, 1/2)."""
    if dtype == tf.float32:
        coefficients = _SINE_POLYNOMIAL
    else:
        coefficients = [
            (-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1)
            for k in range(_SINE_TERMS)
        ]
    return t * _series(coefficients, t * t, dtype)


def _series(coefficients: list[float], x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    total = tf.constant(coefficients[-1], dtype)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
