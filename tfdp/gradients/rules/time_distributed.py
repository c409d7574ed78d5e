"""TimeDistributed: a layer that is called on every step of a sequence."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import is_recomputed, layers_in, takes
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.images import DRAW_ONCE
from tfdp.gradients.rules.rule import RecordWise, register_rule


def _treats_steps_alike(layer: Any) -> bool:
    """Returns whether it is the same to call the layer in it once, on the steps of all records.

    What draws once for each call would draw once for all steps. In a `keras.RematScope` the layer
    is called again in the backward pass.
    """
    parts = layers_in(layer, deep=True)
    return not any(isinstance(p, DRAW_ONCE) or is_recomputed(p) for p in parts)


def _gets_sequences(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> bool:
    """Returns whether a layer gets [n, t, ...], with a mask [n, t, ...] or none."""
    if not holds_records(inputs) or inputs.shape.rank is None or inputs.shape.rank < 3:
        return False
    return mask is None or (holds_records(mask) and (mask.shape.rank or 0) >= 2)


def _on_all_steps(
    recording: Recording,
    layer: Any,
    call: Callable[..., Any],
    inputs: Any,
    training: Any = None,
    mask: Any = None,
) -> Any:
    """Calls the layer in it once, with the steps of each record as consecutive rows of a batch."""
    lengths = tf.shape(inputs)[:2]
    steps = inputs.shape[1]
    options = {}
    # As in the layer's own code.
    if mask is not None and takes(layer.layer, "mask"):
        options["mask"] = _as_rows(mask, lengths)
    if takes(layer.layer, "training"):
        options["training"] = training
    with recording.rows_of_records(lengths[1] if steps is None else steps):
        outputs = layer.layer.call(_as_rows(inputs, lengths), **options)
    if not (tf.is_tensor(outputs) and holds_records(outputs)):
        raise UnsupportedModelError(
            f"{layer.layer.name!r} in {layer.name!r} must return one tensor. Received: {outputs}. "
            "Use engine='vectorized'."
        )
    sequences = tf.reshape(outputs, tf.concat([lengths, tf.shape(outputs)[1:]], 0))
    return tf.ensure_shape(sequences, [None, steps, *outputs.shape[1:]])


def _as_rows(tensor: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Returns [n * t, ...] from [n, t, ...]."""
    rows = tf.concat([[lengths[0] * lengths[1]], tf.shape(tensor)[2:]], 0)
    return tf.ensure_shape(tf.reshape(tensor, rows), [None, *tensor.shape[2:]])


register_rule(
    keras.layers.TimeDistributed,
    RecordWise(when=_treats_steps_alike, called_on=_gets_sequences, run=_on_all_steps),
)
