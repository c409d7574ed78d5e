"""Vectors of real numbers as integers modulo a power of two, and back.

A record is rotated, so that no coordinate is much larger than the others. It is scaled and rounded
to integers at random, so that sums have no bias. It is taken modulo 2^b, which is how secure sums
add up. Nothing of this is noise: what protects a record is the bound on the norm of its integers,
which is checked on the integers themselves, and the noise on their sum. Rotation, rounding and
modulus are public, or could be.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.events.arguments import positive_integer, real_number

# Rounding is repeated until the norm holds. Each time that succeeds with probability 0.39 or more;
# after so many times (10^-21) every coordinate is rounded towards zero.
_MOST_ATTEMPTS = 100
# Of `rounded_norm_bound`: what Kairouz, Liu and Steinke recommend, and the most that is taken.
LARGEST_BETA = math.exp(-0.5)


def rounded_norm_bound(norm: float, num_coordinates: int, beta: float = LARGEST_BETA) -> float:
    """Returns a bound that the l2 norm of a vector keeps with probability 1 - beta when its
    coordinates are rounded up or down at random, without bias.

    Args:
        norm: Of the vector before it is rounded, in units of the integers.
        num_coordinates: d.
        beta: In [0, exp(-1/2)]. Rounding is repeated until the bound holds, about 1 / (1 - beta)
            times, which costs a bias of about beta.

    Returns:
        min(norm + sqrt(d), sqrt(norm^2 + d/4 + sqrt(2 log(1/beta)) (norm + sqrt(d)/2))).

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    Example:
        >>> round(rounded_norm_bound(1000.0, 2**20), 1)
        1124.1

    References:
        Kairouz, Liu, Steinke 2021, arXiv:2102.06387, theorem 1.
    """
    norm = real_number("norm", norm, minimum=0, inclusive=False)
    root = math.sqrt(positive_integer("num_coordinates", num_coordinates))
    beta = real_number("beta", beta, minimum=0, inclusive=True, maximum=LARGEST_BETA)
    if beta == 0:
        return norm + root
    deviation = math.sqrt(-2 * math.log(beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(norm * norm + root * root / 4 + deviation))


def padded_length(number: int) -> int:
    """Returns the smallest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def signs(seed: int, step: Any, length: int) -> tf.Tensor:
    """Returns float64 [length] of 1 and -1, the same wherever they are computed."""
    # The algorithm is named: by default XLA has another one.
    key = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
    bits = tf.random.stateless_uniform([length], key, 0, 2, tf.int32, alg="philox")
    return tf.cast(1 - 2 * bits, tf.float64)


def hadamard(vector: tf.Tensor) -> tf.Tensor:
    """Returns H v / sqrt(d), H being the Hadamard matrix; twice it is v.

    Args:
        vector: [d], d a power of two.
    """
    length = vector.shape[0]
    half = 1
    while half < length:
        pairs = tf.reshape(vector, [-1, 2, half])
        left, right = pairs[:, 0], pairs[:, 1]
        vector = tf.stack([left + right, left - right], axis=1)
        half *= 2
    return tf.reshape(vector, [length]) / math.sqrt(length)


def rotate(vector: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Returns the vector, with zeros behind it, rotated by random signs and the Hadamard matrix."""
    padding = sign.shape[0] - vector.shape[0]
    return hadamard(sign * tf.pad(vector, [[0, padding]]))


def rotate_back(vector: tf.Tensor, sign: tf.Tensor, length: int) -> tf.Tensor:
    """Returns the vector of this length that `rotate` made this of."""
    return (sign * hadamard(vector))[:length]


def round_at_random(
    vector: tf.Tensor, is_within: Callable[[tf.Tensor], tf.Tensor], seed: tf.Tensor
) -> tf.Tensor:
    """Returns int64: every coordinate rounded up or down, with its own as the expected value, given
    that the whole is within bounds.

    Guarantees:
        The result is within bounds if the vector, rounded towards zero, is. It need not be secret
        how it was rounded.

    Args:
        vector: float64 [d], of magnitudes below 2^52.
        is_within: Of the integers.
        seed: int32 [2].
    """
    below = tf.floor(vector)
    rest, below = vector - below, tf.cast(below, tf.int64)

    def attempt(number):
        key = tf.stack([seed[0], seed[1] ^ number])
        uniform = tf.random.stateless_uniform(
            [vector.shape[0]], key, dtype=tf.float64, alg="philox"
        )
        return below + tf.cast(uniform < rest, tf.int64)

    first = attempt(tf.constant(0))
    _, rounded = tf.while_loop(
        lambda number, rounded: (number < _MOST_ATTEMPTS) & ~is_within(rounded),
        lambda number, rounded: (number + 1, attempt(number + 1)),
        (tf.constant(0), first),
    )
    return tf.where(is_within(rounded), rounded, tf.cast(vector, tf.int64))


def wrap(integers: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns the int64 within -2^(bits - 1) .. 2^(bits - 1) - 1 that is equal modulo 2^bits."""
    # Shifted to the top, the bits above fall off; shifted back, the sign comes with them.
    top = 64 - bits
    return tf.bitwise.right_shift(tf.bitwise.left_shift(integers, top), top)
