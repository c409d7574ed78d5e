"""Records as vectors of whole numbers, and discrete Gaussian noise on their sums.

What is released is a function of integers alone. Floating-point numbers are used in two places:
before a record is rounded, where they can change this one record only, and after the noise, which
is post-processing. Mironov 2012 ("On significance of the least significant bits for differential
privacy") tells sums apart by the numbers that floating-point noise cannot reach. There are no such
numbers here.

Coordinates are rounded towards zero. So no norm grows, and nothing is added to the bound for the
rounding. On average each coordinate loses half a step of the grid, 2^-31 to 2^-32 of the clip norm.
(Rounding to the nearest number, or at random, has no such bias, but would add up to sqrt(d) / 2 or
sqrt(d) steps to the bound.)
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.noise import RandomSource, staged
from tfdp.query.leaves import record_dtype, whole
from tfdp.query.structure import Structure, tensor_of

# A clip norm is between 2^30 and 2^31 steps of its grid: squares of norms fit into 62 bits, and the
# sum of 2^31 records into 63. Larger sums wrap around, which is post-processing of the true sum.
_LOG_STEPS = 31
# The limit serves the bound on the distance between the two noises
# (`tfdp.accounting.discrete_noise`), and keeps sums of squares within 64 bits.
MAX_COORDINATES = 2**30
# The range of the noise, in steps of the grid. Less noise is too far from a Gaussian, and more does
# not fit into the integers.
_LEAST_NOISE, _MOST_NOISE = 2.0**10, 2.0**50


class OnGrid(NamedTuple):
    """A record, or a sum of records, in steps of a grid.

    Attributes:
        integers: int64.
        zeros: A zero for every leaf, of the dtype that a result is to have.
    """

    integers: Structure
    zeros: Structure


def grid_of(l2_norm_clip: float) -> float:
    """Returns the distance of the grid, a power of two, for records of norm up to `l2_norm_clip`.

    Raises:
        TypeError: it is not a number, for instance because it adapts.
    """
    if tf.is_tensor(l2_norm_clip):
        raise TypeError(
            "precision='exact' needs an l2_norm_clip that is one number and never changes, because "
            f"it says what the grid is. Received: l2_norm_clip={l2_norm_clip!r}."
        )
    return math.ldexp(1.0, math.frexp(l2_norm_clip)[1] - _LOG_STEPS)


def noise_variance(l2_norm_clip: float, stddev: float) -> Fraction:
    """Returns the variance of the noise in squared steps of the grid, exactly.

    Raises:
        ValueError: it is out of range.
    """
    steps = Fraction(stddev) / Fraction(grid_of(l2_norm_clip))
    if stddev and not _LEAST_NOISE <= steps <= _MOST_NOISE:
        raise ValueError(
            "precision='exact' needs a stddev between 2^-20 and 2^19 times l2_norm_clip, or zero. "
            f"Received: stddev={stddev!r}, l2_norm_clip={l2_norm_clip!r}."
        )
    return steps * steps


def zeros(template: Structure) -> OnGrid:
    """Returns the sum of no records.

    Raises:
        ValueError: records have too many coordinates, or a shape that is not known.
    """
    _check_coordinates(tf.nest.flatten(template))
    return OnGrid(
        tf.nest.map_structure(lambda leaf: tf.zeros(_shape(leaf), tf.int64), template),
        tf.nest.map_structure(lambda leaf: tf.zeros([], record_dtype(leaf)), template),
    )


def clip_to_grid(l2_norm_clip: float, record: Structure) -> OnGrid:
    """Returns r min(1, l2_norm_clip / |r|), rounded towards zero to steps of the grid.

    Guarantees:
        The norm of the integers, times the grid, is at most `l2_norm_clip`. Their squares are added
        up as integers. If floating-point rounding has let a record through that is too long, it is
        shortened until it is not.

    Edge cases:
        A record with a NaN or infinity, or whose square overflows in its dtype, is zero.

    Raises:
        ValueError: records have too many coordinates, or a shape that is not known.
        TypeError: a leaf is neither float32 nor float64.
    """
    grid = grid_of(l2_norm_clip)
    record = tf.nest.map_structure(tensor_of, record)
    leaves = tf.nest.flatten(record)
    _check_coordinates(leaves)
    dtypes = [record_dtype(leaf) for leaf in leaves]
    is_finite = tf.reduce_all([tf.math.is_finite(tf.reduce_sum(tf.square(r))) for r in leaves])
    leaves = [tf.cast(leaf, tf.float64) for leaf in leaves]
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(leaf)) for leaf in leaves]))
    is_finite &= tf.math.is_finite(norm)
    norm = tf.where(is_finite, norm, tf.zeros_like(norm))
    clip = tf.constant(l2_norm_clip, tf.float64)
    factor = clip / tf.maximum(norm, clip)
    steps = Fraction(l2_norm_clip) / Fraction(grid)
    longest = tf.constant(math.floor(steps), tf.int64)

    def rounded(leaf: tf.Tensor) -> tf.Tensor:
        leaf = tf.where(is_finite, leaf, tf.zeros_like(leaf))
        # The grid is a power of two, so this division is exact. A cast to integers rounds towards
        # zero.
        integers = tf.cast(leaf * factor * (1 / grid), tf.int64)
        return tf.clip_by_value(integers, -longest, longest)

    integers = shorten([rounded(leaf) for leaf in leaves], math.floor(steps * steps))
    return OnGrid(
        tf.nest.pack_sequence_as(record, integers),
        tf.nest.pack_sequence_as(record, [tf.zeros([], dtype) for dtype in dtypes]),
    )


def shorten(integers: list[tf.Tensor], largest_square: int) -> list[tf.Tensor]:
    """Returns integers whose squares add up to at most `largest_square`.

    Guarantees:
        Those that are short enough stay as they are; others lose a millionth part, again and again.

    Args:
        integers: int64, of magnitudes below 2^31, and at most 2^30 of them.
        largest_square: Below 2^62.
    """

    def shorter(leaf):
        size = tf.abs(leaf)
        return tf.sign(leaf) * tf.maximum(size - tf.bitwise.right_shift(size, 20) - 1, 0)

    return tf.while_loop(
        lambda integers: is_longer(integers, largest_square),
        lambda integers: [[shorter(leaf) for leaf in integers]],
        [integers],
    )[0]


def is_longer(integers: list[tf.Tensor], largest_square: int) -> tf.Tensor:
    """Returns whether squares add up to more than `largest_square`; see `shorten`."""
    # The sum is computed in two parts. Each fits into 62 bits, whatever the integers are.
    squares = [tf.square(leaf) for leaf in integers]
    low = tf.add_n([tf.reduce_sum(tf.bitwise.bitwise_and(s, 2**32 - 1)) for s in squares])
    high = tf.add_n([tf.reduce_sum(tf.bitwise.right_shift(s, 32)) for s in squares])
    high += tf.bitwise.right_shift(low, 32)
    low = tf.bitwise.bitwise_and(low, 2**32 - 1)
    most_high, most_low = divmod(largest_square, 2**32)
    return (high > most_high) | (tf.equal(high, most_high) & (low > most_low))


def noised(state: OnGrid, l2_norm_clip: float, stddev: float, source: RandomSource) -> Structure:
    """Returns a sum with discrete Gaussian noise, as floating-point numbers.

    Only when the noise is in them are they converted.

    Args:
        state: A sum of records from `clip_to_grid`.
        l2_norm_clip: Theirs.
        stddev: Of the noise; zero for none.
        source: Where the noise comes from.

    Returns:
        The structure, shapes and dtypes of the records.
    """
    if tf.is_tensor(stddev):
        raise TypeError(
            f"precision='exact' needs a stddev that is one number. Received: stddev={stddev!r}."
        )
    grid, variance = grid_of(l2_norm_clip), noise_variance(l2_norm_clip, stddev)

    def release(integers: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
        integers = whole(integers)
        if variance:
            integers += source.discrete_gaussian(tf.shape(integers), variance)
        return tf.cast(tf.cast(integers, tf.float64) * grid, zero.dtype)

    if not variance:
        return tf.nest.map_structure(release, *state)
    return staged(tf.nest.map_structure, release, *state)


def _check_coordinates(leaves: list[Any]) -> None:
    shapes = [_shape(leaf) for leaf in leaves]
    if not all(shape.is_fully_defined() for shape in shapes):
        raise ValueError(
            "precision='exact' needs records whose shape is known when a graph is built. Received "
            f"shapes {shapes}."
        )
    number = sum(shape.num_elements() for shape in shapes)
    if number > MAX_COORDINATES:
        raise ValueError(
            f"precision='exact' takes records of at most {MAX_COORDINATES} coordinates for one "
            f"query. Received {number}. Give every part a query of its own (NestedQuery)."
        )


def _shape(leaf: Any) -> tf.TensorShape:
    return tf.TensorShape(leaf.shape if hasattr(leaf, "shape") else tf.constant(leaf).shape)
