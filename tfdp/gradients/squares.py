"""Squared norms of every record's numbers."""

import tensorflow as tf

from tfdp.gradients.keras_internals import is_compiled_by_xla
from tfdp.numerics import rounding
from tfdp.numerics.shared_graphs import traced_once


def sum_of_squares(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the squared l2 norm of every record of a tensor, [n], no less than the exact one.

    Args:
        tensor: [n, ...], float32 or float64.
    """
    return _sum_of_squares(tensor, is_compiled_by_xla())


@traced_once
def _sum_of_squares(tensor: tf.Tensor, compiled: bool) -> tf.Tensor:
    axes = range(1, tensor.shape.rank)
    if compiled:  # XLA has no such operation.
        return rounding.sum_of_squares(tensor, axes)
    # One operation, which does not write the squares down, takes half the time for large records.
    # It adds up as `tf.reduce_sum` does, and takes the root, whose rounding counts twice in its
    # square; that has one of its own. XLA refuses to compile it in a graph that was made for no
    # compiler.
    count = rounding.count_of(tensor, 1)
    squares = tf.square(tf.math.reduce_euclidean_norm(tensor, list(axes)))
    error = rounding.sum_error(count, tensor.dtype) + 4
    return rounding.enlarged(squares, error) + rounding.vanished(count, tensor.dtype)
