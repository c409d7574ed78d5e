"""Shapes of tensors whose first axis is that of records."""

import math
from collections.abc import Sequence

import tensorflow as tf


def reshape_records(tensor: tf.Tensor, shape: Sequence[int | tf.Tensor]) -> tf.Tensor:
    """Returns [n, *shape] from [n, ...].

    Where all sizes are known but n this is one operation, where `tf.shape(tensor)[0]` takes half a
    dozen, in every layer and every step.

    Args:
        tensor: [n, ...].
        shape: Of a record; of as many numbers as a record of `tensor` has.
    """
    n, known = tensor.shape[0], tensor.shape[1:].num_elements()
    if n is None:
        # -1 stands for the number of records only where a record keeps its numbers, and has some.
        keeps = all(isinstance(size, int) for size in shape) and known == math.prod(shape)
        n = -1 if keeps and known else tf.shape(tensor)[0]
    return tf.reshape(tensor, [n, *shape])
