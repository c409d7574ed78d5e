"""Leaves of records: which there may be, zeros of their shape, and specs that say it."""

from typing import Any

import tensorflow as tf

from tfdp.query.structure import Structure, describe, tensor_of


def record_dtype(leaf: Any) -> tf.DType:
    """Returns the dtype of a tensor, variable or `tf.TensorSpec` of a record.

    Raises:
        TypeError: it is neither float32 nor float64. In half precision a clipped record can exceed
            the bound by 0.2 %, and a sum can round by more than a record.
    """
    dtype = _dtype(leaf)
    if dtype not in (tf.float32, tf.float64):
        raise TypeError(
            "Records must be float32 or float64; cast them, or use a mixed precision policy, which "
            f"keeps float32 variables. Received a leaf of dtype {dtype.name}, of shape "
            f"{tf.TensorShape(getattr(leaf, 'shape', ()))}."
        )
    return dtype


def zeros_like(leaf: Any) -> tf.Tensor:
    """Returns zeros of the shape and dtype of a tensor, variable or `tf.TensorSpec`."""
    return _zeros(leaf, record_dtype(leaf))


def numeric_zeros_like(leaf: Any) -> tf.Tensor:
    """Returns zeros of the shape and dtype of a leaf that may hold integers, too.

    Raises:
        TypeError: it does not hold numbers.
    """
    dtype = _dtype(leaf)
    if not (dtype.is_floating or dtype.is_integer):
        raise TypeError(
            f"Records must hold numbers. Received a leaf of dtype {dtype.name}, of shape "
            f"{tf.TensorShape(getattr(leaf, 'shape', ()))}."
        )
    return _zeros(leaf, dtype)


def whole(sums: Any) -> tf.Tensor:
    """Returns a leaf of a sample state as a tensor, if it holds integers, as a mechanism that is
    exact needs: noise of whole steps would leave every digit behind the point as it was.

    Raises:
        TypeError: they are something else.
    """
    sums = tf.convert_to_tensor(sums)
    if not sums.dtype.is_integer:
        raise TypeError(
            "sample_state must be integers, as initial_sample_state and accumulate_record return "
            f"them. Received: shape {sums.shape} and dtype {sums.dtype.name}."
        )
    return sums


def _zeros(leaf: Any, dtype: tf.DType) -> tf.Tensor:
    if not isinstance(leaf, tf.TensorSpec):
        return tf.zeros(tf.shape(leaf), dtype)
    if not leaf.shape.is_fully_defined():
        raise ValueError(f"A template must say what shape records have. Received: {leaf!r}.")
    return tf.zeros(leaf.shape, dtype)


def _dtype(leaf: Any) -> tf.DType:
    if leaf is None:
        raise TypeError(
            "A template, or a record, holds None, whose shape nobody knows. Give a tensor, an "
            "array, a number or a tf.TensorSpec."
        )
    if tf.nest.is_nested(leaf):
        raise TypeError(
            "A record of this query must be one tensor. Give each part of a record a query of its "
            f"own, with NestedQuery. Received: {describe(leaf)}."
        )
    return tf.as_dtype(getattr(leaf, "dtype", None) or tensor_of(leaf).dtype)


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


def check_specs(specs: Structure, record: Structure) -> None:
    """Refuses a record, a template or a sum whose leaves are not like `record_specs`.

    Raises:
        TypeError: a leaf is neither float32 nor float64, or wider than its spec, so that noise of
            the spec's dtype would leave bits of it bare.
        ValueError: there are more or fewer leaves, or their shapes differ.
    """
    wanted, leaves = tf.nest.flatten(specs), tf.nest.flatten(record)
    dtypes = [record_dtype(leaf) for leaf in leaves]
    shapes = [tf.TensorShape(getattr(leaf, "shape", ())) for leaf in leaves]
    if shapes != [spec.shape for spec in wanted]:
        raise ValueError(
            f"Records must have the shapes of record_specs. Received shapes: {shapes}, expected: "
            f"{[spec.shape for spec in wanted]}."
        )
    if any(dtype.size > spec.dtype.size for dtype, spec in zip(dtypes, wanted, strict=True)):
        raise TypeError(
            "Records must not be wider than record_specs: make the query for float64, or cast the "
            f"records. Received: {describe(record)}, expected: {describe(specs)}."
        )


def words_of_spec(spec: tf.TensorSpec) -> str:
    """Returns what a configuration holds, "float32 2 3": Keras writes specs, but cannot read
    them.
    """
    return " ".join([spec.dtype.name, *map(str, spec.shape)])


def spec_of_words(words: str) -> tf.TensorSpec:
    """Returns the spec of which `words_of_spec` made the words."""
    dtype, *shape = words.split(" ")
    return tf.TensorSpec(list(map(int, shape)), dtype)
