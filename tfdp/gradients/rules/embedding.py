"""Embeddings: a table of which every record uses a few rows."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients.forms.products import matrix_gradient
from tfdp.gradients.forms.rows import Rows
from tfdp.gradients.indices import in_range, nowhere
from tfdp.gradients.keras_internals import TABLE, table_of
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.dense import times
from tfdp.gradients.rules.rule import LayerRule, register_rule
from tfdp.numerics.shapes import reshape_records


def _positions(tensor: tf.Tensor, last: list[int]) -> tf.Tensor:
    """Returns the tensor with all axes between the first and `last` made one."""
    middle = tensor.shape[1 : tensor.shape.rank - len(last)].as_list()
    if len(middle) == 1:
        return tensor
    number = -1 if None in middle else math.prod(middle)
    return reshape_records(tensor, [number, *last])


class _Ids(NamedTuple):
    """Places in a table.

    Attributes:
        safe: Integers [n, ...], in range.
        good: bool [n], whether those that the record had were.
        num_rows: Of the table.
    """

    safe: tf.Tensor
    good: tf.Tensor
    num_rows: int

    @classmethod
    def of(cls, inputs: tf.Tensor, num_rows: int) -> "_Ids":
        ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        return cls(*in_range(ids, num_rows, -num_rows, axis=range(1, ids.shape.rank)), num_rows)

    def gradient(self, gradient: tf.Tensor) -> Rows:
        """Returns the gradients of the table from those of its rows, [n, ..., d]."""
        rows = _positions(gradient, [gradient.shape[-1]])
        return Rows(_positions(self.safe, []), rows, self.num_rows, self.good)


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
        ids = _Ids.of(inputs, layer.input_dim)
        tap = recording.watch(_looked_up(ids, call, **kwargs))
        recording.add(tap, table_of(layer), ids.gradient)
        if layer.lora_enabled:
            a, b = layer.lora_embeddings_a, layer.lora_embeddings_b
            scale = layer.lora_alpha / layer.lora_rank

            def rows(dtype):
                return tf.cast(keras.ops.take(a.value, ids.safe, axis=0), dtype)

            recording.add(tap, a, lambda g: ids.gradient(scale * times(g, b, True)))
            recording.add(tap, b, lambda g: matrix_gradient(scale * rows(g.dtype), g))
        return tap.tensor


def _looked_up(ids: _Ids, call: Any, **kwargs: Any) -> tf.Tensor:
    """Returns what the layer gives, and NaN for the records with an id that it does not have."""
    outputs = call(ids.safe, **kwargs)
    good = tf.reshape(ids.good, [-1] + [1] * (outputs.shape.rank - 1))
    return tf.where(good, outputs, nowhere(outputs))


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
            ids = _Ids.of(inputs, layer.input_dim)
            tap = recording.watch(_looked_up(ids, call, **kwargs))
            recording.add(tap, table_of(layer), ids.gradient)
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
