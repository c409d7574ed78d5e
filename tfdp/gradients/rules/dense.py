"""Dense: a matrix, with a bias, and its low-rank adaptation."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.forms.products import matrix_gradient
from tfdp.gradients.keras_internals import KERNEL, kernel_of
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.rule import LayerRule, register_rule
from tfdp.numerics.norms import to_accumulate


def matrix_variables(layer: Any) -> list[Any]:
    """Returns kernel, bias, and the factors of a low-rank adaptation of the kernel."""
    names = (KERNEL, "bias", "lora_kernel_a", "lora_kernel_b")
    return [v for name in names if (v := getattr(layer, name, None)) is not None]


def bias_gradient(gradient: tf.Tensor) -> Explicit:
    """Returns the gradients of a vector that is added along the last axis."""
    others = list(range(1, gradient.shape.rank - 1))
    return Explicit(tf.reduce_sum(gradient, others) if others else gradient)


def added_gradient(gradient: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Returns the gradients, [n, *shape], of a weight of this shape that `keras.ops.add` adds.

    Whatever has one axis longer than 1 is a vector for Keras. It adds it along the last axis where
    that is as long, and else along the first one of a record where that is: not always along the
    axis that broadcasting would line up with it.
    """
    last = gradient.shape.rank - 1
    lengths = [size for size in shape if size != 1]
    places = [i for i in (last, 1) if lengths == [gradient.shape[i]]]
    if places:
        others = [i for i in range(1, last + 1) if i != places[0]]
        summed = tf.reduce_sum(gradient, others) if others else gradient
        return summed if len(shape) == 1 else tf.reshape(summed, [-1, *shape])
    missing = last - len(shape)
    summed = tf.reduce_sum(gradient, list(range(1, 1 + missing))) if missing else gradient
    broadcast = [1 + i for i, size in enumerate(shape) if size == 1]
    return tf.reduce_sum(summed, broadcast, keepdims=True) if broadcast else summed


class DenseRule(LayerRule):
    """The kernel's gradient is sum_t outer(input_t, gradient_t).

    With low-rank adaptation the kernel is W + s A B: A has the gradient sum_t outer(input_t, s B
    gradient_t), and B sum_t outer(s A' input_t, gradient_t).
    """

    taps_activation = True

    def variables(self, layer: Any) -> Iterable[Any]:
        return matrix_variables(layer)

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        with recording.before_activation(layer) as tap:
            outputs = call(inputs, **kwargs)
        recording.add(tap, layer.bias, bias_gradient)
        recording.add(tap, kernel_of(layer), lambda g: matrix_gradient(inputs, g))
        if layer.lora_enabled:
            a, b = layer.lora_kernel_a, layer.lora_kernel_b
            scale = layer.lora_alpha / layer.lora_rank
            recording.add(tap, a, lambda g: matrix_gradient(inputs, scale * times(g, b, True)))
            recording.add(tap, b, lambda g: matrix_gradient(scale * times(inputs, a), g))
        return outputs


def times(tensor: tf.Tensor, variable: Any, transpose: bool = False) -> tf.Tensor:
    """Returns the product of the tensor's last axis with a matrix, a variable's or a tensor."""
    tensor = to_accumulate(tensor)
    matrix = variable if tf.is_tensor(variable) else variable.value
    matrix = tf.cast(matrix, tensor.dtype)
    return tf.tensordot(tensor, tf.transpose(matrix) if transpose else matrix, 1)


register_rule(keras.layers.Dense, DenseRule())
