"""What a block does, in terms that do not depend on the number of records."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.gradients.attached import flatten_with_attached
from tfdp.gradients.draws import DRAWS
from tfdp.gradients.record_wise_operations import Kinds
from tfdp.gradients.static_values import static_value, value_from_outside, values_of

_PLUMBING = ("Assert", "Const", "NoOp", "Shape")
# The operands of operations that have a shape beside them.
_OPERANDS = {
    "BroadcastTo": slice(1),
    "Fill": slice(1, 2),
    "Reshape": slice(1),
    "Slice": slice(2),
    "Tile": slice(1),
    **dict.fromkeys(DRAWS, slice(4, None)),
}


class Steps:
    """The operations and calls of layers of a block, in their order.

    Attributes:
        done: What was done, each with what it was done to.
        shapes: What is known of the shapes of the tensors in each step.

    Args:
        kinds: Which tensors of the graph hold records; None: that is not looked at.
    """

    def __init__(self, kinds: Kinds | None):
        self._kinds = kinds
        self._labels: dict[str, Any] = {}
        # What every record has, [1, ...], or its rows, [k, ...].
        self._for_one: dict[str, np.ndarray] = {}
        self.done: list[Any] = []
        self.shapes: list[list[tf.TensorShape]] = []

    def note(self, tensor: tf.Tensor, label: Any) -> None:
        """Notes what a tensor is, in terms that do not depend on the number of records."""
        self._labels[tensor.name] = label

    def label(self, tensor: tf.Tensor) -> Any:
        """Returns what a tensor is: what was noted, its value if that is known, or "other"."""
        if tf.is_symbolic_tensor(tensor) and tensor.name in self._labels:
            return self._labels[tensor.name]
        value = None
        if self._kinds is not None and tf.is_symbolic_tensor(tensor):
            value = self._kinds.lengths_for_one(tensor)
        value = static_value(tensor) if value is None else value
        return "other" if value is None else _as_label(value)

    def has(self, tensor: tf.Tensor) -> bool:
        """Returns whether it was noted what a tensor is."""
        return tf.is_symbolic_tensor(tensor) and tensor.name in self._labels

    def labels_in(self, structure: Any) -> list[Any]:
        """Returns what the leaves of a structure are, and what Keras attached to them."""
        flat = flatten_with_attached(structure)[0]
        return [self.label(leaf) if tf.is_tensor(leaf) else repr(leaf) for leaf in flat]

    def add_use(self, step: Any, structure: Any) -> None:
        """Adds what is done with the tensors of a structure."""
        self.done.append(step)
        self.shapes.append([t.shape for t in tensors_in(structure)])

    def add(self, op: tf.Operation) -> None:
        """Adds an operation, if it does more than give what is known beforehand."""
        if self._is_plumbing(op) or self._is_known_for_one(op):
            return
        if _stays_as_it_is(op) or self._keeps_its_shape(op):
            self.note(op.outputs[0], self.label(op.inputs[0]))
            return
        filled = _what_fills(op)
        if filled is not None:
            self.note(op.outputs[0], _filled(filled))
            return
        kind, names, inputs = op.type, set(op.node_def.attr), op.inputs
        squeezed = _squeezed_for(op)
        bias = None if squeezed is None else op.inputs[1].name
        if bias is not None and self._labels.get(bias) == (len(self.done), 0):
            self.done.pop()
            self.shapes.pop()
            self._labels[bias] = ("squeezed", self.label(squeezed))
            kind, names, inputs = "AddV2", {"T"}, [op.inputs[0], squeezed]
        inputs = inputs[_OPERANDS.get(kind, slice(None))]
        attributes = sorted(
            (name, str(op.node_def.attr[name])) for name in names if not name.startswith("_")
        )
        self.done.append((kind, attributes, [self.label(t) for t in inputs]))
        self.shapes.append([t.shape for t in (*inputs, *op.outputs)])
        for i, tensor in enumerate(op.outputs):
            self.note(tensor, (len(self.done), i))

    def same_as(self, other: "Steps") -> bool:
        """Returns whether other steps are the same, with as many numbers of each record, as far as
        that is known.
        """
        if self.done != other.done:
            return False
        shapes, others = itertools.chain(*self.shapes), itertools.chain(*other.shapes)
        return all(a.is_compatible_with(b) for a, b in zip(shapes, others, strict=True))

    def of_other_layers(self, layers: Mapping[int, int]) -> "Steps | None":
        """Returns the same steps with other layers.

        Args:
            layers: The identities of those, by the identities of the layers that they stand for;
                None is returned where one is missing.
        """
        found = Steps(None)
        for step in self.done:
            if isinstance(step, tuple) and isinstance(step[0], int):  # A call of a layer.
                if step[0] not in layers:
                    return None
                step = (layers[step[0]], *step[1:])
            found.done.append(step)
        found.shapes = self.shapes
        return found

    def _is_plumbing(self, op: tf.Operation) -> bool:
        """Returns whether an operation is about shapes, or gives what is known beforehand."""
        if op.type in _PLUMBING:
            return True
        if op.outputs and all(_is_known(tensor) for tensor in op.outputs):
            return True
        return self._kinds is not None and any(map(self._kinds.is_shape, op.outputs))

    def _keeps_its_shape(self, op: tf.Operation) -> bool:
        """Returns whether an operation gives a tensor the shape that it has."""
        if op.type != "Reshape":
            return False
        before, after = op.inputs[0].shape, op.outputs[0].shape
        if not before.rank or before.rank != after.rank or not before[1:].is_fully_defined():
            return False
        rows = None if self._kinds is None else self._kinds.rows_of(op.inputs[0])
        if rows is None:
            as_long = before[0] is not None and before[0] == after[0]
        else:
            as_long = rows == self._kinds.rows_of(op.outputs[0])
        return as_long and list(before[1:]) == list(after[1:])

    def _is_known_for_one(self, op: tf.Operation) -> bool:
        """Returns whether all results of an operation would be known beforehand, had the batch one
        record, and notes them: then every record has the same integers.
        """
        if self._kinds is None or not all(result.dtype.is_integer for result in op.outputs):
            return False
        values = self._values_for_one(op)
        for tensor, value in zip(op.outputs, values, strict=False):
            self._for_one[tensor.name] = value
            self.note(tensor, _as_label(value))
        return bool(values)

    def _values_for_one(self, op: tf.Operation) -> list[np.ndarray]:
        filled = _what_fills(op)
        if filled is not None:
            rows, sizes = self._kinds.rows_of(op.outputs[0]), op.outputs[0].shape[1:]
            if rows is None or not sizes.is_fully_defined():
                return []
            return [np.full([rows, *sizes], filled)]
        if not any(t.name in self._for_one or self._kinds.is_shape(t) for t in op.inputs):
            return []
        return values_of(op, [self._value_for_one(t) for t in op.inputs]) or []

    def _value_for_one(self, tensor: tf.Tensor) -> np.ndarray | None:
        if tensor.name in self._for_one:
            return self._for_one[tensor.name]
        value = self._kinds.lengths_for_one(tensor)
        return static_value(tensor) if value is None else value


def tensors_in(structure: Any) -> list[tf.Tensor]:
    """Returns the tensors in a structure, with those that Keras attached to them."""
    return [leaf for leaf in flatten_with_attached(structure)[0] if tf.is_tensor(leaf)]


def _is_known(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor holds what was known beforehand: lengths, axes and places."""
    if value_from_outside(tensor) is not None:
        return True
    return tensor.dtype.is_integer and static_value(tensor) is not None


def _stays_as_it_is(op: tf.Operation) -> bool:
    """Returns whether an operation puts axes in the order that they have."""
    order = static_value(op.inputs[1]) if op.type == "Transpose" else None
    return order is not None and list(order) == list(range(len(order)))


def _squeezed_for(op: tf.Operation) -> tf.Tensor | None:
    """Returns what an operation adds to another tensor along its last axis, given that it is all
    that has been squeezed, and for this only: what `keras.ops.add` makes of the sum of two tensors
    of one row.
    """
    if op.type != "BiasAdd" or op.inputs[1].op.type != "Squeeze":
        return None
    if len(op.inputs[1].consumers()) > 1:
        return None
    squeeze, shape = op.inputs[1].op, op.inputs[1].op.inputs[0].shape
    along_last = op.get_attr("data_format") == b"NHWC" and not squeeze.get_attr("squeeze_dims")
    one_row = shape.is_fully_defined() and set(shape[:-1]) == {1}
    fits = along_last and one_row and shape.rank <= op.inputs[0].shape.rank
    return squeeze.inputs[0] if fits else None


def _what_fills(op: tf.Operation) -> Any:
    """Returns the number that an operation fills a tensor with, or None if it does something else,
    or fills it with a number that is not known.
    """
    if op.type == "Fill":
        return static_value(op.inputs[1])
    if op.type in ("OnesLike", "ZerosLike"):
        dtype = op.outputs[0].dtype.as_numpy_dtype
        return np.ones((), dtype) if op.type == "OnesLike" else np.zeros((), dtype)
    return None


def _as_label(value: Any) -> Any:
    value = np.asarray(value)
    if value.dtype == object:  # Texts: what NumPy keeps are places in the memory.
        return repr(value.tolist())
    # TensorFlow makes a constant of zeros and ones where it knows how many.
    if value.size and (value == value.flat[0]).all():
        return _filled(value)
    return (str(value.dtype), value.shape, value.tobytes())


def _filled(value: np.ndarray) -> tuple[str, str, bytes]:
    return ("filled", str(value.dtype), value.flat[0].tobytes())
