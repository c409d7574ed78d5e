"""EinsumDense: any contraction of an input with a kernel, and its low-rank adaptation."""

import math
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.forms.products import Product
from tfdp.gradients.keras_internals import kernel_of
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.dense import added_gradient, matrix_variables
from tfdp.gradients.rules.rule import LayerRule, register_rule
from tfdp.numerics.norms import to_accumulate
from tfdp.numerics.shapes import reshape_records


class Contraction(NamedTuple):
    """An einsum of input and kernel, a letter an axis; the first of input and output is records."""

    inputs: str
    kernel: str
    outputs: str

    @property
    def shared(self) -> str:
        """Axes of the kernel that input and output have too."""
        return "".join(c for c in self.kernel if c in self.inputs and c in self.outputs)

    @property
    def contracted(self) -> str:
        """Axes of the kernel that only the input has."""
        return "".join(c for c in self.kernel if c in self.inputs and c not in self.outputs)

    @property
    def produced(self) -> str:
        """Axes of the kernel that only the output has."""
        return "".join(c for c in self.kernel if c not in self.inputs and c in self.outputs)

    @property
    def positions(self) -> str:
        """Axes beside that of records which only input and output have."""
        return "".join(c for c in self.outputs[1:] if c not in self.kernel)

    def is_product(self) -> bool:
        """Returns whether every record's gradient is a sum of outer products over positions."""
        letters = [self.inputs, self.kernel, self.outputs]
        return (
            all(len(set(part)) == len(part) for part in letters)
            and self.inputs[:1] == self.outputs[:1]
            and self.inputs[0] not in self.kernel
            and set(self.inputs[1:]) == set(self.shared + self.contracted + self.positions)
            and set(self.outputs[1:]) == set(self.shared + self.produced + self.positions)
            and len(self.kernel) == len(self.shared + self.contracted + self.produced)
        )


def parse(equation: str, input_rank: int) -> Contraction:
    """Returns the contraction of an equation, with an ellipsis written out."""
    left, outputs = equation.replace(" ", "").split("->")
    inputs, kernel = left.split(",")
    unused = [c for c in string.ascii_letters if c not in equation]
    more = "".join(unused[: input_rank - len(inputs.replace("...", ""))])
    return Contraction(inputs.replace("...", more), kernel, outputs.replace("...", more))


def product(contraction: Contraction, left: tf.Tensor, right: tf.Tensor) -> Product:
    """Returns the gradients of a kernel from inputs and gradients of outputs."""
    c = contraction
    rows = _arranged(left, c.inputs, [c.shared, c.positions, c.contracted])
    columns = _arranged(right, c.outputs, [c.shared, c.positions, c.produced])
    sizes = dict(zip(c.inputs, left.shape, strict=True)) | dict(
        zip(c.outputs, right.shape, strict=True)
    )
    letters = c.shared + c.contracted + c.produced
    permutation = [letters.index(letter) for letter in c.kernel]
    return Product(rows, columns, [sizes[letter] for letter in letters], permutation)


def _arranged(tensor: tf.Tensor, letters: str, groups: Sequence[str]) -> tf.Tensor:
    """Returns the tensor with the axes of every group made one, in the order of the groups."""
    tensor = to_accumulate(tensor)
    order = [0, *(letters.index(letter) for group in groups for letter in group)]
    if order != list(range(len(order))):
        tensor = tf.transpose(tensor, order)
    shape, start = [], 1
    for group in groups:
        sizes = tensor.shape[start : start + len(group)]
        shape.append(-1 if None in sizes else math.prod(sizes))
        start += len(group)
    return reshape_records(tensor, shape)


class EinsumDenseRule(LayerRule):
    """The kernel's gradient is a sum of outer products over the axes that it does not have.

    Kernel axes that input and output share make one such sum each. With low-rank adaptation the
    kernel is W + s A B, B along its last axis, which must be one of the output.
    """

    taps_activation = True

    def holds_for(self, layer: Any) -> bool:
        if not (layer.built and super().holds_for(layer)):
            return False
        c = parse(layer.equation, layer.input_spec.ndim)
        # Without another axis, an activation along the last axis would go along the records.
        return c.is_product() and len(c.outputs) > 1

    def variables(self, layer: Any) -> Iterable[Any]:
        c = parse(layer.equation, layer.input_spec.ndim)
        if layer.lora_enabled and c.kernel[-1] not in c.produced:
            return []
        return matrix_variables(layer)

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        c = parse(layer.equation, layer.input_spec.ndim)
        with recording.before_activation(layer) as tap:
            outputs = call(inputs, **kwargs)
        recording.add(tap, kernel_of(layer), lambda g: product(c, inputs, g))
        recording.add(tap, layer.bias, lambda g: Explicit(added_gradient(g, layer.bias.shape)))
        if layer.lora_enabled:
            a, b = layer.lora_kernel_a, layer.lora_kernel_b
            scale = layer.lora_alpha / layer.lora_rank
            # A is a kernel that produces the axis of the low rank in the place of the last axis. B
            # is a kernel that turns the axis of the low rank into the last axis.
            last, rank = c.kernel[-1], next(x for x in string.ascii_letters if x not in "".join(c))
            to_rank = Contraction(c.inputs, c.kernel[:-1] + rank, c.outputs.replace(last, rank))
            from_rank = Contraction(to_rank.outputs, rank + last, c.outputs)

            def a_gradient(g):
                equation = f"{c.outputs},{rank}{last}->{to_rank.outputs}"
                return product(to_rank, inputs, scale * _einsum(equation, g, b))

            def b_gradient(g):
                equation = f"{to_rank.inputs},{to_rank.kernel}->{to_rank.outputs}"
                return product(from_rank, scale * _einsum(equation, inputs, a), g)

            recording.add(tap, a, a_gradient)
            recording.add(tap, b, b_gradient)
        return outputs


def _einsum(equation: str, tensor: tf.Tensor, variable: Any) -> tf.Tensor:
    tensor = to_accumulate(tensor)
    return tf.einsum(equation, tensor, tf.cast(variable.value, tensor.dtype))


register_rule(keras.layers.EinsumDense, EinsumDenseRule())
