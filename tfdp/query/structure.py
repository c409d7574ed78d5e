"""Structures of records: what goes with which part of one, and specs that say its shape."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdp.query.dp_query import Structure, describe, record_dtype


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


def spec_of(leaf: Any) -> tf.TensorSpec:
    """Returns the spec of a leaf of records: a tensor, variable or `tf.TensorSpec`.

    Raises:
        TypeError: it is neither float32 nor float64.
        ValueError: its shape is not known.
    """
    shape = tf.TensorShape(getattr(leaf, "shape", ()))
    if not shape.is_fully_defined():
        raise ValueError(f"record_specs must say what shape records have. Received: {leaf!r}.")
    return tf.TensorSpec(shape, record_dtype(leaf))


def words_of_spec(spec: tf.TensorSpec) -> str:
    """Returns what a configuration holds, "float32 2 3": Keras writes specs, but cannot read
    them.
    """
    return " ".join([spec.dtype.name, *map(str, spec.shape)])


def spec_of_words(words: str) -> tf.TensorSpec:
    """Returns the spec of which `words_of_spec` made the words."""
    dtype, *shape = words.split(" ")
    return tf.TensorSpec(list(map(int, shape)), dtype)
