"""Structures of records: their sums, what goes with which part of one, and how they are shown."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

Structure = Any  # A tensor, or a list, tuple, named tuple or dict of structures, as in `tf.nest`.


def tensor_of(leaf: Any) -> tf.Tensor:
    """Returns a leaf of a record as a tensor.

    Raises:
        TypeError: it can be none. TensorFlow's own error would show the numbers of the record.
    """
    try:
        return tf.convert_to_tensor(leaf)
    except (TypeError, ValueError):
        raise TypeError(
            "The leaves of a record must be tensors, arrays or numbers; make sparse and ragged "
            f"ones dense before. Received a leaf of type {type(leaf).__name__}."
        ) from None


def add(left: Structure, right: Structure) -> Structure:
    """Returns the leaf by leaf sum of two structures.

    Raises:
        ValueError: structures, shapes or dtypes differ. A record of another shape would be repeated
            along an axis, and so be longer than it was clipped to.
    """
    check_same_structure(left, right)
    pairs = zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True)
    pairs = [(tensor_of(a), tensor_of(b)) for a, b in pairs]
    if not all(a.shape.is_compatible_with(b.shape) and a.dtype == b.dtype for a, b in pairs):
        raise ValueError(
            f"Shapes or dtypes differ.\n  Expected: {describe(left)}\n  Received: {describe(right)}"
        )
    return tf.nest.pack_sequence_as(left, [_sum(a, b) for a, b in pairs])


def _sum(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns the sum of two tensors; where their shapes are not known before the graph runs, they
    are compared then.
    """
    if left.shape.is_fully_defined() and right.shape.is_fully_defined():
        return tf.add(left, right)
    # An addition of several repeats nothing along an axis, with XLA, which drops assertions, or
    # without. From one of unknown shape Grappler would conclude what shape it has to have, and give
    # it to zeros that a record is made of: hence the placeholders.
    hidden = [tf.raw_ops.PlaceholderWithDefault(input=x, shape=None) for x in (left, right)]
    total = tf.add_n(hidden)
    total.set_shape(left.shape.merge_with(right.shape))
    return total


def check_same_structure(expected: Structure, received: Structure) -> None:
    """Raises a ValueError that prints both structures, if they differ."""
    try:
        tf.nest.assert_same_structure(expected, received, check_types=False)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Structures differ.\n  Expected: {describe(expected)}\n  Received: "
            f"{describe(received)}"
        ) from error


def describe(structure: Structure) -> str:
    """Returns the structure with every leaf written as dtype and shape."""

    def leaf(value):
        shape = getattr(value, "shape", None)
        return "." if shape is None else f"{getattr(value, 'dtype', '')}{tf.TensorShape(shape)}"

    return str(tf.nest.map_structure(leaf, structure))


def is_concrete(structure: Structure) -> bool:
    """Returns whether every leaf has a value now, rather than when a graph runs."""
    return tf.executing_eagerly() or not any(
        tf.is_symbolic_tensor(leaf) or isinstance(leaf, tf.Variable)
        for leaf in tf.nest.flatten(structure)
        if tf.is_tensor(leaf)
    )


def flatten_up_to(prefix: Structure, structure: Structure) -> list[Any]:
    """Returns the parts of `structure` that stand where `prefix` has its leaves.

    Lists and tuples match each other; dicts are read in the order of their sorted keys, as in
    `tf.nest`.

    Raises:
        ValueError: the structures do not match; the message shows both.
    """
    parts: list[Any] = []
    if not _collect(prefix, structure, parts):
        raise ValueError(
            "The record does not have the structure of the queries (or scales) it is meant for.\n"
            f"  Expected: {tf.nest.map_structure(lambda _: '.', prefix)}\n"
            f"  Received: {describe(structure)}"
        )
    return parts


def _collect(prefix: Structure, structure: Structure, parts: list[Any]) -> bool:
    if not tf.nest.is_nested(prefix):
        parts.append(structure)
        return True
    if isinstance(prefix, Mapping):
        if not isinstance(structure, Mapping) or set(prefix) != set(structure):
            return False
        return all(_collect(prefix[key], structure[key], parts) for key in sorted(prefix))
    if not isinstance(structure, (list, tuple)) or len(prefix) != len(structure):
        return False
    return all(_collect(p, s, parts) for p, s in zip(prefix, structure, strict=True))


def paths_of(structure: Structure) -> list[tuple[Any, ...]]:
    """Returns the keys and indices that lead to each leaf, in the order of `tf.nest.flatten`.

    Example:
        >>> paths_of({"b": [0.0, 0.0], "a": 0.0})
        [('a',), ('b', 0), ('b', 1)]
    """
    if not tf.nest.is_nested(structure):
        return [()]
    if isinstance(structure, Mapping):
        parts = [(key, structure[key]) for key in sorted(structure)]
    elif hasattr(structure, "_fields"):
        parts = list(zip(structure._fields, structure, strict=True))
    else:
        parts = list(enumerate(structure))
    return [(key, *path) for key, part in parts for path in paths_of(part)]
