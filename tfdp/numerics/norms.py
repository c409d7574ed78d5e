"""Sums of squares and of records that neither overflow nor vanish in silence."""

import tensorflow as tf

from tfdp.numerics import rounding
from tfdp.numerics.rounding import vanished as vanished
from tfdp.numerics.shapes import reshape_records
from tfdp.numerics.shared_graphs import traced_once


def to_accumulate(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor in float32 at least: half precision is not enough to add up in."""
    return tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)


def scale_records(tensor: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """Returns tensor[i] * factors[i], and exactly zero where the factor is, whatever the tensor
    holds. None stands for ones.
    """
    if factors is None:
        return tensor
    factors = tf.cast(factors, tensor.dtype)
    if tensor.shape.rank > 1:
        factors = tf.reshape(factors, [-1] + [1] * (tensor.shape.rank - 1))
    return tf.math.multiply_no_nan(tensor, factors)


def weighted_sum(factors: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of factors[i] * tensor[i], as a matrix product.

    `tf.tensordot` gives the same, by three dozen operations.

    Args:
        factors: [n], of the tensor's dtype.
        tensor: [n, ...], with lengths that are known but for the first.
    """
    shape = tensor.shape[1:]
    if shape.rank == 1:
        return tf.squeeze(tf.matmul(tf.expand_dims(factors, 0), tensor), 0)
    rows = reshape_records(tensor, [shape.num_elements()])
    return tf.reshape(tf.matmul(tf.expand_dims(factors, 0), rows), shape)


def drop_records(tensor: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """Returns the tensor with zeros for the records whose factor is zero; none is by default."""
    if factors is None:
        return tensor
    return scale_records(tensor, tf.cast(tf.not_equal(factors, 0), tensor.dtype))


def not_negative(squares: tf.Tensor) -> tf.Tensor:
    """Returns the squares, with zero in place of those that rounding made negative. NaN stays
    NaN.
    """
    # tf.maximum need not keep a NaN.
    return tf.where(squares < 0, tf.zeros_like(squares), squares)


@traced_once
def squares_from_grams(
    left: tf.Tensor, right: tf.Tensor, rows: rounding.Count, columns: rounding.Count
) -> tf.Tensor:
    """Returns squared norms of products of matrices from Gram matrices of their factors.

    The product of A, [t, rows], and B, [t, columns], has |A^T B|^2 = sum(L * R), L = A A^T, R =
    B B^T. Where positions cancel, that is a small difference of large numbers.

    Guarantees:
        The result is no less than the square of |A^T B| + u sum_t |a_t| |b_t|: the norm of a sum of
        outer products whose factors have been rounded. With a_t . a_s of k numbers, L_ts is off by
        at most k u |a_t| |a_s|, in whatever order it is added up, so by

            u sum_ts (rows |a_t| |a_s| |R_ts| + (columns + 8) |L_ts| |b_t| |b_s|)

        the square can be too small, and that is added; the sum over t and s is taken in float64 (in
        place of 8 there is 2 sum_error(t) + 8 where L and R are float64). So is what can have
        vanished from the inner products, so that a product of huge and tiny numbers does not pass
        for nothing.

    Args:
        left: A A^T, [n, t, t].
        right: B B^T, [n, t, t].
        rows: Numbers in an inner product on the left.
        columns: Likewise on the right.

    Returns:
        [n].
    """
    t, dtype = rounding.count_of(left, -1), left.dtype
    rows, columns = (rounding.additions(count, dtype) for count in (rows, columns))
    by_row = 8.0 if dtype == tf.float32 else 2 * rounding.sum_error(t, dtype) + 8
    squares = tf.cast(tf.reduce_sum(tf.cast(left * right, tf.float64), [1, 2]), dtype)
    left_squares, right_squares = tf.linalg.diag_part(left), tf.linalg.diag_part(right)
    left_norms, right_norms = tf.sqrt(left_squares), tf.sqrt(right_squares)
    of_left = tf.reduce_sum(left_norms * tf.linalg.matvec(tf.abs(right), left_norms), 1)
    of_right = tf.reduce_sum(right_norms * tf.linalg.matvec(tf.abs(left), right_norms), 1)
    # The norms and inner products here are themselves off by a few times these factors.
    u = rounding.unit(dtype)
    more = u * (1 + 4 * u * (rows + columns + rounding.as_number(t, dtype) + by_row))
    squares += more * (rows * of_left + (columns + by_row) * of_right)
    # The absolute values in a Gram matrix add up to at most t times its trace.
    numbers = rounding.as_number(t, dtype)
    squares += tf.reduce_sum(left_squares, 1) * vanished(numbers * columns, dtype)
    squares += tf.reduce_sum(right_squares, 1) * vanished(numbers * rows, dtype)
    magnitudes = tf.reduce_sum(left_norms * right_norms, 1)
    squares = rounding.with_error(not_negative(squares), more * magnitudes)
    return rounding.with_product_error(squares, magnitudes)


def segment_sum(
    tensor: tf.Tensor, mask: tf.Tensor, ids: tf.Tensor, num_segments: int | tf.Tensor
) -> tf.Tensor:
    """Returns [num_segments, ...]: sums over the rows of each segment at which the mask is true.

    Args:
        tensor: [n, ...].
        mask: bool [n].
        ids: The segment of every row, [n], in 0 .. num_segments - 1.
        num_segments: How many segments there are.
    """
    # Masked rows go to a segment of their own: adding zero times a NaN would not be nothing.
    segments = tf.where(mask, ids, num_segments)
    return tf.math.unsorted_segment_sum(tensor, segments, num_segments + 1)[:-1]
