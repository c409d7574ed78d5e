"""Embeddings: a table of which every record uses a few rows."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.forms.products import matrix_gradient
from tfdp.gradients.forms.rows import Rows
from tfdp.gradients.indices import in_range, nowhere
from tfdp.gradients.keras_internals import TABLE, table_of
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.dense import times
from tfdp.gradients.rules.rule import LayerRule, register_rule


def _positions(tensor: tf.Tensor, last: list[int]) -> tf.Tensor:
    """Returns the tensor with all axes between the first and `last` made one."""
    middle = tensor.shape[1 : tensor.shape.rank - len(last)]
    number = None if None in middle else math.prod(middle)
    flat = tf.reshape(tensor, [tf.shape(tensor)[0], -1 if number is None else number, *last])
    return tf.ensure_shape(flat, [tensor.shape[0], number, *last])


def _as_ids(inputs: tf.Tensor) -> tf.Tensor:
    return inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)


def table_gradient(inputs: tf.Tensor, gradient: tf.Tensor, num_rows: int) -> Rows:
    """Returns the gradients of a table from ids [n, ...] and gradients [n, ..., d]."""
    return Rows(
        _positions(_as_ids(inputs), []), _positions(gradient, [gradient.shape[-1]]), num_rows
    )


class EmbeddingRule(LayerRule):
    """Row `id` of the table gets the sum of the gradients at the positions that hold `id`.

    With low-rank adaptation the table is E + s A B: A's row `id` gets s B gradient_t, and B the
    product of s A[id_t] and gradient_t.
    """

    records_when_frozen = True  # Ids are checked.

    def variables(self, layer: Any) -> Iterable[Any]:
        names = (TABLE, "lora_embeddings_a", "lora_embeddings_b")
        return [v for name in names if (v := getattr(layer, name, None)) is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        tap = recording.watch(_looked_up(layer, call, inputs, **kwargs))
        size = layer.input_dim
        recording.add(tap, table_of(layer), lambda g: table_gradient(inputs, g, size))
        if layer.lora_enabled:
            a, b = layer.lora_embeddings_a, layer.lora_embeddings_b
            scale = layer.lora_alpha / layer.lora_rank
            recording.add(tap, a, lambda g: table_gradient(inputs, scale * times(g, b, True), size))
            recording.add(
                tap,
                b,
                lambda g: matrix_gradient(scale * tf.cast(_rows(a, inputs), g.dtype), g),
            )
        return tap.tensor


def _looked_up(layer: Any, call: Any, inputs: tf.Tensor, **kwargs: Any) -> tf.Tensor:
    """Returns what the layer gives, and NaN for the records with an id that it does not have."""
    ids, good = _in_table(inputs, layer.input_dim)
    outputs = call(ids, **kwargs)
    good = tf.reshape(good, [-1] + [1] * (outputs.shape.rank - 1))
    return tf.where(good, outputs, nowhere(outputs))


def _in_table(inputs: tf.Tensor, num_rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    ids = _as_ids(inputs)
    return in_range(ids, num_rows, -num_rows, axis=range(1, ids.shape.rank))


def _rows(table: Any, inputs: tf.Tensor) -> tf.Tensor:
    ids, _ = _in_table(inputs, table.shape[0])
    return keras.ops.take(table.value, ids, axis=0)


class ReversibleEmbeddingRule(EmbeddingRule):
    """As `EmbeddingRule`; in reverse, the outputs are products with the rows of the same table."""

    def variables(self, layer: Any) -> Iterable[Any]:
        # A soft cap is applied after the product, where the rule cannot see it.
        if layer.logit_soft_cap is not None or layer.lora_enabled:
            return []
        reverse = [] if layer.tie_weights else [layer.reverse_embeddings]
        return [table_of(layer), *reverse]

    def record(
        self,
        recording: Recording,
        layer: Any,
        call: Callable[..., Any],
        inputs: Any,
        reverse: bool = False,
        **kwargs: Any,
    ) -> Any:
        if not reverse:
            tap = recording.watch(_looked_up(layer, call, inputs, **kwargs))
            size = layer.input_dim
            recording.add(tap, table_of(layer), lambda g: table_gradient(inputs, g, size))
            return tap.tensor
        tap = recording.watch(call(inputs, reverse=True, **kwargs))
        if layer.tie_weights:
            recording.add(tap, table_of(layer), lambda g: matrix_gradient(g, inputs))
        else:
            recording.add(tap, layer.reverse_embeddings, lambda g: matrix_gradient(inputs, g))
        return tap.tensor


register_rule(keras.layers.Embedding, EmbeddingRule())
if hasattr(keras.layers, "ReversibleEmbedding"):  # Keras 3.13 and later.
    register_rule(keras.layers.ReversibleEmbedding, ReversibleEmbeddingRule())
