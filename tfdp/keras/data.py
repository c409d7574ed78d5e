"""What `fit` accepts as data, in the form that sampling needs."""

import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def is_dataset(x: Any) -> bool:
    """Returns whether `x` yields batches, which tfdp cannot sample, rather than holds examples."""
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        return True
    return (
        not hasattr(x, "__array__")
        and not isinstance(x, (list, tuple, dict))
        and hasattr(x, "__iter__")
    )


def peek(dataset: Any) -> tuple[tuple[Any, Any, Any], Any]:
    """Returns one example of zeros, shaped as the first of a data set, and the data set, complete.

    Raises:
        ValueError: the data set is empty.
    """
    if isinstance(dataset, tf.data.Dataset):
        batch = dataset.element_spec
        if not all(spec.shape[1:].is_fully_defined() for spec in tf.nest.flatten(batch)):
            batch = next(iter(dataset.take(1)), None)
    elif isinstance(dataset, keras.utils.PyDataset):
        batch = dataset[0]
    elif isinstance(dataset, types.GeneratorType):
        batch = next(dataset, None)
        dataset = _put_back(batch, dataset)
    else:
        batch = next(iter(dataset), None)
    if batch is None:
        raise ValueError("The training data are empty.")

    def zeros(leaf):
        if leaf is None:
            return None
        leaf = leaf if isinstance(leaf, tf.TensorSpec) else tf.convert_to_tensor(leaf)
        return tf.zeros([1, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(zeros, keras.utils.unpack_x_y_sample_weight(batch)), dataset


def _put_back(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def prepare_arrays(x, y, sample_weight, class_weight, validation_split, validation_data):
    """Returns (x, y, sample_weight, validation_data), with class weights and the split applied.

    Raises:
        ValueError: lengths differ, there is nothing, or the arguments contradict each other.
    """
    x, y, sample_weight = (_as_arrays(part) for part in (x, y, sample_weight))
    num_examples = length(x, y, sample_weight)
    if class_weight is not None:
        if sample_weight is not None:
            raise ValueError("Give class_weight or sample_weight, not both.")
        sample_weight = _weights_of_classes(y, class_weight)
    if validation_split and validation_data is None:
        if not 0 < validation_split < 1:
            raise ValueError(
                f"validation_split must be between 0 and 1. Received: {validation_split=}."
            )
        at = int(num_examples * (1 - validation_split))
        if at in (0, num_examples):
            raise ValueError(
                f"validation_split={validation_split} of {num_examples} examples leaves one part "
                "empty."
            )
        parts = (x, y, sample_weight)
        held_out = tf.nest.map_structure(lambda a: None if a is None else a[at:], parts)
        x, y, sample_weight = tf.nest.map_structure(lambda a: None if a is None else a[:at], parts)
        validation_data = held_out if held_out[2] is not None else held_out[:2]
    return x, y, sample_weight, validation_data


def _as_arrays(part: Any) -> Any:
    def convert(leaf):
        if leaf is None:
            return None
        array = np.asarray(leaf)
        if array.ndim == 0:
            raise ValueError(
                f"Data must be arrays with a leading axis of examples. Received: {leaf!r}."
            )
        if np.issubdtype(array.dtype, np.floating):
            array = array.astype(keras.config.floatx(), copy=False)
        return array

    return None if part is None else keras.tree.map_structure(convert, part)


def length(*parts: Any) -> int:
    """Returns the number of examples that all arrays share, at least one."""
    lengths = {len(leaf) for leaf in tf.nest.flatten(parts) if leaf is not None}
    if len(lengths) != 1:
        raise ValueError(
            "x, y and sample_weight must have the same length. Received lengths: "
            f"{sorted(lengths)}."
        )
    (length,) = lengths
    if not length:
        raise ValueError("The training data are empty.")
    return length


def _weights_of_classes(y: Any, class_weight: dict[int, float]) -> np.ndarray:
    if not isinstance(y, np.ndarray):
        raise ValueError("class_weight needs a model with one output. Use sample_weight.")
    labels = y.argmax(-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y))
    weights = [class_weight.get(int(label), 1.0) for label in labels]
    return np.asarray(weights, keras.config.floatx())
