"""Layers that prepare the columns of a table, whose code treats every record separately."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.mapping import holds_records
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.rule import RecordWise, register_rule

_layers = keras.layers

# "tf_idf" uses numbers that the layer keeps beside its weights.
_MODES = ("count", "int", "multi_hot", "one_hot")


def _is_dense(layer: Any) -> bool:
    """Returns whether a layer makes tensors, and none that are sparse, by nobody else's code."""
    return not layer.sparse and layer.output_mode in _MODES and _has_known_parts(layer)


def _has_known_parts(layer: Any) -> bool:
    """Returns whether the objects that a layer asks are Keras' and TensorFlow's own."""
    parts = [getattr(layer, name, None) for name in ("backend", "lookup_table")]
    packages = {type(part).__module__.split(".")[0] for part in parts if part is not None}
    return packages <= {"keras", "tensorflow"}


def _can_be_nan(encoding: Any) -> bool:
    """Returns whether an encoding makes numbers, where it counts ids, that can be NaN."""
    is_floating = keras.backend.is_float_dtype(encoding.dtype)
    return _is_dense(encoding) and (is_floating or encoding.output_mode == "one_hot")


def _takes_every_value(lookup: Any) -> bool:
    """Returns whether a lookup has a place for each value. Where it has none for those that are not
    in its vocabulary, it stops at them.
    """
    return _is_dense(lookup) and bool(lookup.invert or lookup.num_oov_indices)


def _gets_ids_alone(encoding: Any, ids: Any, count_weights: Any = None) -> bool:
    """Returns whether an encoding counts every id once."""
    return holds_records(ids) and count_weights is None


def _encoded(
    recording: Recording, encoding: Any, call: Callable[..., Any], ids: tf.Tensor, *args: Any
) -> tf.Tensor:
    """Runs an encoding. Where ids are counted, TensorFlow stops at one below zero. A record with
    such has NaN in its place, as it has where it runs by itself.
    """
    if encoding.output_mode == "one_hot":
        return call(ids, *args)
    if not ids.dtype.is_integer:  # In a graph Keras makes them floating-point numbers.
        ids = tf.cast(ids, tf.float32)
        ids = tf.cast(tf.where(tf.abs(ids) < 2**31, ids, -1.0), tf.int64)
    outputs = call(tf.maximum(ids, 0), *args)
    is_good = tf.reduce_all(ids >= 0, axis=list(range(1, ids.shape.rank)))
    is_good = tf.reshape(is_good, [-1] + [1] * (outputs.shape.rank - 1))
    return tf.where(is_good, outputs, tf.constant(math.nan, outputs.dtype))


def _crosses_columns(crossing: Any, columns: Any) -> bool:
    """Returns whether every column that a layer crosses has one value of each record."""
    return all(holds_records(column) and column.shape.rank == 2 for column in columns)


def _gives_one_for_each(layer: Any) -> bool:
    """Returns whether a layer gives one integer for each value, whatever the axes."""
    return layer.output_mode == "int"


for _layer in (_layers.Discretization, _layers.Hashing):
    register_rule(_layer, RecordWise(when=_is_dense, of_numbers=_gives_one_for_each))
for _layer in (_layers.IntegerLookup, _layers.StringLookup):
    register_rule(_layer, RecordWise(when=_takes_every_value, of_numbers=_gives_one_for_each))
register_rule(
    _layers.CategoryEncoding, RecordWise(when=_can_be_nan, called_on=_gets_ids_alone, run=_encoded)
)
register_rule(_layers.HashedCrossing, RecordWise(when=_is_dense, called_on=_crosses_columns))
