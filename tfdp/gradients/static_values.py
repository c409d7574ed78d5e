"""Numbers that are known when a graph is built."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.gradients.graphs import create
from tfdp.gradients.keras_internals import forgets_length, is_stateful

# Larger tensors are no shapes, axes or places.
_MOST = 64
# Operations that choose among the numbers of an operand, and which that is.
_CHOICES = {"GatherV2": 0, "Slice": 0, "Split": 1, "SplitV": 0, "StridedSlice": 0, "Unpack": 0}
_UNKNOWN = -1


def value_from_outside(tensor: tf.Tensor) -> Any:
    """Returns the value of a tensor that was computed before the graph was built, as an array, or
    None if it was not.
    """
    while tf.is_symbolic_tensor(tensor):
        captures = getattr(tensor.graph, "captures", ())
        if tensor.op.type != "Placeholder":
            return None
        tensor = next((outer for outer, inner in captures if inner is tensor), None)
        if tensor is None:
            return None
    return None if tensor.dtype in (tf.resource, tf.variant) else tensor.numpy()


def static_value(tensor: tf.Tensor) -> np.ndarray | None:
    """Returns the value of a tensor as an array if it is known: one that was computed beforehand, a
    constant, or a few integers that are computed of such.
    """
    return _value(tensor, {})


def _value(tensor: tf.Tensor, found: dict[str, np.ndarray | None]) -> np.ndarray | None:
    """As `static_value`.

    Args:
        tensor: The tensor.
        found: Values of tensors of its graph, by name, to which this adds.
    """
    value = value_from_outside(tensor)
    if value is None:
        value = tf.get_static_value(tensor)
    if value is None and tf.is_symbolic_tensor(tensor) and tensor.dtype.is_integer:
        if tensor.name not in found:
            found[tensor.name] = _folded(tensor, found)
        value = found[tensor.name]
    return value


def _folded(tensor: tf.Tensor, found: dict[str, np.ndarray | None]) -> np.ndarray | None:
    op = tensor.op
    if forgets_length(op):  # What follows are records, whatever is known of them.
        return None
    if not _is_small(op, [t.shape.num_elements() or _MOST for t in op.inputs]):
        return None
    values = [_value(t, found) for t in op.inputs]
    among = _CHOICES.get(op.type, 0)
    is_choice = op.type in _CHOICES and values[among] is None
    if is_choice:
        values[among] = _known_lengths(op.inputs[among])
    results = _computed(op, values)
    value = None if results is None else results[tensor.value_index]
    return None if is_choice and value is not None and (value == _UNKNOWN).any() else value


def values_of(op: tf.Operation, values: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
    """Returns the results of an operation for other operands than its own, or None where
    `static_value` would not compute them, had it these.

    Args:
        op: The operation.
        values: Of its operands; None where one is not known.
    """
    if any(value is None for value in values) or not _is_small(op, [v.size for v in values]):
        return None
    return _computed(op, values)


def _is_small(op: tf.Operation, sizes: Sequence[int]) -> bool:
    """Returns whether an operation computes with a few integers, given its operands' sizes."""
    if not op.inputs or is_stateful(op.type) or op.type.startswith("Stateless"):
        return False
    return all(t.dtype.is_integer for t in op.inputs) and max(sizes) <= _MOST


def _computed(op: tf.Operation, values: Sequence[Any]) -> list[np.ndarray] | None:
    function = getattr(tf.raw_ops, op.type, None)
    if function is None or any(value is None for value in values):
        return None
    given, inferred, left = {}, set(), list(values)
    for arg in op.op_def.input_arg:
        inferred |= {arg.type_attr, arg.number_attr, arg.type_list_attr}
        if arg.number_attr:
            number = op.get_attr(arg.number_attr)
            given[arg.name], left = left[:number], left[number:]
        else:
            given[arg.name], left = left[0], left[1:]
    for attribute in op.op_def.attr:
        if attribute.name not in inferred:
            given[attribute.name] = op.get_attr(attribute.name)
    with tf.init_scope():
        results = function(**_as_named(given, function))
        results = results if isinstance(results, (list, tuple)) else [results]
        # In a graph that belongs to no function, nothing is computed before a session runs.
        return [result.numpy() for result in results] if tf.executing_eagerly() else None


def _known_lengths(tensor: tf.Tensor) -> np.ndarray | None:
    """Returns a shape of which some lengths are known, with `_UNKNOWN` for the others."""
    if tensor.op.type != "Shape" or tensor.op.inputs[0].shape.rank is None:
        return None
    lengths = [_UNKNOWN if n is None else n for n in tensor.op.inputs[0].shape]
    return np.array(lengths, tensor.dtype.as_numpy_dtype)


def note_lengths(op: tf.Operation, but_for: int = 1) -> bool:
    """Notes the lengths that results of an operation have since more is known of its operands than
    was when it was made.

    Args:
        op: The operation.
        but_for: How many axes in front are that of records, whose length nobody asks for.

    Returns:
        Whether another length is known.
    """
    tensors = [*op.inputs, *op.outputs]
    if any(t.dtype in (tf.resource, tf.variant) for t in tensors):
        return False
    before = [t.shape for t in op.outputs]
    if all(shape[but_for:].is_fully_defined() for shape in before if shape.rank is not None):
        return False
    values = [static_value(t) for t in op.inputs]
    with tf.Graph().as_default():
        inputs = [
            tf.compat.v1.placeholder(t.dtype, t.shape) if value is None else tf.constant(value)
            for t, value in zip(op.inputs, values, strict=True)
        ]
        shapes = [result.shape for result in create(op, inputs)]
    for tensor, shape in zip(op.outputs, shapes, strict=True):
        tensor.set_shape(shape)
    return before != [t.shape for t in op.outputs]


def _as_named(given: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Returns arguments by the names that a function of `tf.raw_ops` has for them. Some operations
    have other ones (`dim`, `reduction_indices` and the like for `axis`), in the same order.
    """
    names = [name for name in inspect.signature(function).parameters if name != "name"]
    others = iter([name for name in names if name not in given])
    return {name if name in names else next(others, name): given[name] for name in given}
