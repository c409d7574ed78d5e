"""Standard normal draws from random words (Box and Muller 1958)."""

import math

import numpy as np
import tensorflow as tf

# Words for the radius and for the angle of a pair of draws.
_RADIUS_WORDS = {tf.float32: 2, tf.float64: 3}
_ANGLE_WORDS = {tf.float32: 1, tf.float64: 2}
# Terms of power series, so that what is left out is less than half a unit in the last place:
# atanh at 0.172, cosine and sine at pi / 4.
_ATANH_TERMS = 11
# ln(1 + f) / f from 2^-1/2 - 1 to 2^1/2 - 1, within 5e-9: powers of f.
_LOG_POLYNOMIAL = (
    np.polynomial.Chebyshev.interpolate(
        lambda f: np.log1p(f) / f, 9, [math.sqrt(0.5) - 1, math.sqrt(2) - 1]
    )
    .convert(kind=np.polynomial.Polynomial)
    .coef.tolist()
)
_COSINE_TERMS = {tf.float32: 5, tf.float64: 10}
_SINE_TERMS = {tf.float32: 5, tf.float64: 9}


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

        (r cos theta, r sin theta),  r = (-2 ln u)^(1/2)

    u has 63 bits in float32 and 94 in float64, so it is 2^-64 (2^-95) at the least and draws reach
    9.4 (11.5) standard deviations. theta has 32 (63) bits. Everything is element-wise: under XLA it
    is one loop, fused with what is done to the result.

    Guarantees:
        Each draw is within 4e-7 (float32) or 8e-16 (float64), relatively, of the exact function of
        its words. No draw is zero, infinite or NaN. A true normal pair has a larger radius with
        probability 2^-64 (2^-95).

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
        # A slice of the result would stand in the way of vector instructions.
        _, second = _pairs([column[:-1] for column in columns], dtype)
    return tf.concat([first, second], 0)


def _pairs(columns: list[tf.Tensor], dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    radius_words, angle_words = columns[: _RADIUS_WORDS[dtype]], columns[_RADIUS_WORDS[dtype] :]
    radius = tf.sqrt(_twice_exponential(radius_words, dtype))
    cosine, sine = _cosine_and_sine(angle_words, dtype)
    # The angle covers a quarter of the circle, both sides of zero: its sine has a random sign. Two
    # more bits change both signs, and exchange the two.
    radius = tf.where(angle_words[0] & 0x40000000 != 0, -radius, radius)
    exchange = angle_words[0] < 0
    first = radius * tf.where(exchange, sine, cosine)
    second = radius * tf.where(exchange, cosine, sine)
    return first, second


def _fraction(words: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns a number in (0, 1) with 31 bits of each word, and half of the last one's unit."""
    fraction = tf.constant(0.5, dtype)
    for word in reversed(words):
        fraction = (tf.cast(word & 0x7FFFFFFF, dtype) + fraction) * 2.0**-31
    return fraction


def _twice_exponential(words: list[tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns -2 ln u for u in (0, 1), to full relative precision near 0 and near 1."""
    # u is x or 1 - x, by the first bit, with x in (0, 1/2) from the others.
    mask = tf.bitwise.right_shift(words[0], 31)  # 0 or -1: the shift keeps the sign.
    upper = mask < 0
    x = (tf.cast(words[0] ^ mask, dtype) + _fraction(words[1:], dtype)) * 2.0**-32
    u = tf.where(upper, 1 - x, x)
    # u = 2^exponent (1 + f) with 1 + f from 2^-1/2 to 2^1/2, out of u's bits.
    integer, digits = (tf.int32, 23) if dtype == tf.float32 else (tf.int64, 52)
    bits = tf.bitcast(u, integer)
    root = tf.bitcast(tf.constant(math.sqrt(0.5), dtype), integer)
    exponent = tf.bitwise.right_shift(bits - root, tf.constant(digits, integer))
    mantissa = tf.bitcast(bits - tf.bitwise.left_shift(exponent, digits), dtype)
    # Where u is near 1 it has lost what x still knows.
    f = tf.where(tf.logical_and(upper, exponent >= 0), -x, mantissa - 1)
    return -2 * (tf.cast(exponent, dtype) * math.log(2) + _log_of_one_plus(f, dtype))


def _log_of_one_plus(f: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns ln(1 + f) for f from 2^-1/2 - 1 to 2^1/2 - 1."""
    if dtype == tf.float32:
        # XLA would not fuse a quotient into the loop, but write it to memory.
        return f * _series(_LOG_POLYNOMIAL, f, dtype)
    # 2 atanh(t) = 2 (t + t^3 / 3 + t^5 / 5 + ...)
    t = f / (2 + f)
    return t * _series([2 / (2 * k + 1) for k in range(_ATANH_TERMS)], t * t, dtype)


def _cosine_and_sine(words: list[tf.Tensor], dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns cosine and sine of an angle in (-pi / 4, pi / 4), which is never zero.

    The two highest bits of the first word are not used.
    """
    units = tf.cast(tf.bitwise.left_shift(words[0], 2), dtype) + 4 * _fraction(words[1:], dtype)
    angle = units * (math.pi / 2 * 2.0**-32)
    signs = [(-1) ** k for k in range(max(_COSINE_TERMS[dtype], _SINE_TERMS[dtype]))]
    cosine = [signs[k] / math.factorial(2 * k) for k in range(_COSINE_TERMS[dtype])]
    sine = [signs[k] / math.factorial(2 * k + 1) for k in range(_SINE_TERMS[dtype])]
    square = angle * angle
    return _series(cosine, square, dtype), _series(sine, square, dtype) * angle


def _series(coefficients: list[float], x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    total = tf.constant(coefficients[-1], dtype)
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
