"""Sums of records of which each uses a few rows of a table, with counts of who uses them.

They are `tf.IndexedSlices` [m, d + 1] of a table [rows, d + 1]: the last column holds counts. The
same place may be there several times, and is then to be added up.
"""

from typing import Any

import tensorflow as tf

from tfdp.query import norm_factors
from tfdp.query.structure import describe


def empty(table: Any) -> tf.IndexedSlices:
    """Returns no rows of a table [rows, d], a tensor, variable or `tf.TensorSpec`.

    In a graph the number of rows is left open, so that a loop can add some.
    """
    width = table.shape[1] + 1
    values = tf.zeros([0, width], tf.as_dtype(table.dtype))
    places = tf.zeros([0], tf.int64)
    if not tf.executing_eagerly():
        values = tf.raw_ops.PlaceholderWithDefault(input=values, shape=[None, width])
        places = tf.raw_ops.PlaceholderWithDefault(input=places, shape=[None])
    return tf.IndexedSlices(values, places, tf.constant([table.shape[0], width], tf.int64))


def with_counts(
    places: tf.Tensor, rows: tf.Tensor, counts: tf.Tensor, num_rows: int
) -> tf.IndexedSlices:
    """Returns rows of a table with their counts.

    Args:
        places: Integers [m].
        rows: [m, d].
        counts: [m].
        num_rows: Of the table.
    """
    values = tf.concat([rows, tf.cast(counts, rows.dtype)[:, None]], axis=1)
    shape = tf.constant([num_rows, rows.shape[1] + 1], tf.int64)
    return tf.IndexedSlices(values, tf.cast(places, tf.int64), shape)


def contributions(used: tf.Tensor, keep: tf.Tensor, clip: float, dtype: tf.DType) -> tf.Tensor:
    """Returns what records add to the counts of rows: ones, times min(1, clip / sqrt(rows used)).

    Guarantees:
        The l2 norm of what a record adds is at most `clip`.

    Args:
        used: bool [n, k]: whether record i uses its place j. No two of them are the same row.
        keep: bool [n]; what is false adds nothing.
        clip: C_1.
        dtype: float32 or float64.

    Returns:
        [n, k].
    """
    norms = tf.sqrt(tf.reduce_sum(tf.cast(used, dtype), axis=1))
    factors = norm_factors.clip_factors(clip, norms)
    factors = tf.where(keep, factors, tf.zeros_like(factors))
    return tf.where(used, factors[:, None], tf.zeros([], dtype))


def concat(left: tf.IndexedSlices, right: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the rows of both.

    Raises:
        ValueError: they are rows of tables of different shapes or dtypes.
    """
    shapes = [tf.get_static_value(part.dense_shape) for part in (left, right)]
    known = all(shape is not None for shape in shapes)
    if (
        (known and tuple(shapes[0]) != tuple(shapes[1]))
        or left.values.shape[1] != right.values.shape[1]
        or left.values.dtype != right.values.dtype
    ):
        raise ValueError(
            f"Shapes or dtypes of tables differ.\n  Expected: {describe(left)}\n  Received: "
            f"{describe(right)}"
        )
    values = tf.concat([left.values, right.values], axis=0)
    places = tf.concat([left.indices, right.indices], axis=0)
    return tf.IndexedSlices(values, places, left.dense_shape)


def where(rows: tf.IndexedSlices, mask: tf.Tensor) -> tf.IndexedSlices:
    """Returns the rows at which a mask [m] is true."""
    values, places = tf.boolean_mask(rows.values, mask), tf.boolean_mask(rows.indices, mask)
    return tf.IndexedSlices(values, places, rows.dense_shape)


def map_values(function: Any, leaf: Any) -> Any:
    """Returns `function(leaf)`; of `tf.IndexedSlices` with the function of their values."""
    if not isinstance(leaf, tf.IndexedSlices):
        return function(leaf)
    return tf.IndexedSlices(function(leaf.values), leaf.indices, leaf.dense_shape)
