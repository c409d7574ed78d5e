"""Gradients of a table of which a record reads few rows, where TensorFlow differentiates the code
that reads them.
"""

from typing import Any, NamedTuple

import tensorflow as tf


class RowsOfTable(NamedTuple):
    """Gradients of a table, by record, that add rows[i, t] to its row ids[i, t].

    Attributes:
        rows: [n, t, d].
        ids: Integers [n, t].
    """

    rows: tf.Tensor
    ids: tf.Tensor


def gradient_of_record(gradient: Any, shape: tf.TensorShape) -> RowsOfTable | tf.Tensor:
    """Returns the gradient of a weight that TensorFlow gives for one record.

    Args:
        gradient: A tensor, or slices of one.
        shape: Of the weight.

    Returns:
        Rows, [t, d], and their ids, [t], where the weight is a table of which fewer rows were read
        than it has; else [*shape].
    """
    if isinstance(gradient, tf.IndexedSlices) and shape.rank == 2:
        ids = gradient.indices
        if ids.shape.rank == 1 and ids.shape[0] is not None and ids.shape[0] < shape[0]:
            return RowsOfTable(tf.reshape(gradient.values, [ids.shape[0], shape[1]]), ids)
    return tf.convert_to_tensor(gradient)
