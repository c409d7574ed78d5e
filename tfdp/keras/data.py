"""What `fit` accepts as data, in the form that sampling needs."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.gradients.inputs import as_dense
from tfdp.keras.class_weights import weights_of_classes
from tfdp.keras.inputs import as_array, check_validation_split
from tfdp.sampling import PaddedBatch, Source
from tfdp.sampling.arrays import encoded


def is_dataset(x: Any) -> bool:
    """Returns whether `x` yields batches, which tfdp cannot sample, rather than holds examples."""
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        return True
    return (
        not hasattr(x, "__array__")
        and not isinstance(x, (list, tuple, Mapping))
        and hasattr(x, "__iter__")
    )


def peek(dataset: Any, know_rows: bool = False) -> tuple[tuple[Any, Any, Any], Any, int | None]:
    """Returns (one example of zeros, the data set, examples in its first batch).

    The example is shaped as the first of the data set, which comes back complete. The number is
    None where the data set does not say it and `know_rows` is false.

    Args:
        dataset: What yields batches.
        know_rows: Whether to draw a batch where nothing else tells its size.

    Raises:
        ValueError: the data set is empty.
    """
    if isinstance(dataset, tf.data.Dataset):
        batch = dataset.element_spec
        _check_specs(batch)
        shapes = [spec.shape for spec in tf.nest.flatten(batch) if spec is not None]
        known = all(shape[1:].is_fully_defined() for shape in shapes)
        if not known or (know_rows and shapes[0][0] is None):
            batch = next(iter(dataset.take(1)), None)
    elif isinstance(dataset, keras.utils.PyDataset):
        batch = dataset[0]
    elif isinstance(dataset, Iterator):
        batch = next(dataset, None)
        dataset = _put_back(batch, dataset)
    else:
        batch = next(iter(dataset), None)
    if batch is None:
        raise ValueError("The training data are empty.")

    def zeros(leaf):
        if leaf is None:
            return None
        leaf = leaf if isinstance(leaf, tf.TensorSpec) else as_dense("The training data", leaf)
        return tf.zeros([1, *leaf.shape[1:]], leaf.dtype)

    example = tf.nest.map_structure(zeros, keras.utils.unpack_x_y_sample_weight(batch))
    leaf = next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None)
    return example, dataset, leaf.shape[0] if hasattr(leaf, "shape") else len(leaf)


def _check_specs(specs: Any) -> None:
    """Refuses elements that are not dense, or of which nobody knows how many axes they have, and
    those that are samples already.
    """
    if isinstance(specs, PaddedBatch):
        raise TypeError(
            "Samples of tfdp.sampling.batches are for loops of your own. Pass the arrays to fit, "
            "which draws from them: fit(x, y, batch_size=..., sampling=tfdp.sampling.Poisson())."
        )
    for spec in tf.nest.flatten(specs):
        if not isinstance(spec, (tf.TensorSpec, type(None))):
            raise TypeError(
                "A data set must hold dense tensors. Received an element that is a "
                f"{type(spec).__name__}. Convert it in dataset.map(...): to_tensor() for ragged, "
                "tf.sparse.to_dense for sparse tensors."
            )
        if spec is not None and spec.shape.rank is None:
            raise ValueError(
                "A data set must say how many axes its tensors have. Received a tensor of unknown "
                "rank. Give tf.data.Dataset.from_generator an output_signature, or use "
                "tf.ensure_shape in dataset.map(...)."
            )
        if spec is not None and spec.shape.rank == 0:
            raise ValueError(
                "A data set must yield batches. Received a scalar: use dataset.batch(...)."
            )


def _put_back(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def prepare_arrays(
    x: Any,
    y: Any,
    sample_weight: Any,
    class_weight: Any,
    validation_split: float,
    validation_data: Any,
) -> tuple[Any, Any, Any, Any]:
    """Returns (x, y, sample_weight, validation_data), with class weights and the split applied.

    Args:
        x: As in `keras.Model.fit`, arrays only.
        y: Likewise.
        sample_weight: Likewise.
        class_weight: Likewise.
        validation_split: The share of the examples, the last ones, that becomes validation data
            where there are no others.
        validation_data: As in `keras.Model.fit`.

    Raises:
        ValueError: lengths differ, there is nothing, or the arguments contradict each other.
        TypeError: data hold no numbers.
    """
    x, y, sample_weight = weighted_arrays(x, y, sample_weight, class_weight)
    num_examples = length(x, y, sample_weight)
    check_validation_split(validation_split)
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
        validation_data = with_texts_as_tensors(validation_data)
    return x, y, sample_weight, validation_data


def weighted_arrays(x: Any, y: Any, sample_weight: Any, class_weight: Any) -> tuple[Any, Any, Any]:
    """Returns (x, y, sample_weight) as arrays, with class weights applied.

    Args:
        x: As in `keras.Model.fit`, arrays only.
        y: Likewise.
        sample_weight: Likewise; a number for every example.
        class_weight: Likewise; a number for every class, in place of `sample_weight`.

    Raises:
        ValueError: both kinds of weights are given, or something has no axis of examples.
        TypeError: data hold no numbers.
    """
    named = (("x", x), ("y", y), ("sample_weight", sample_weight))
    x, y, sample_weight = (_as_arrays(name, part) for name, part in named)
    if class_weight is None:
        return x, y, sample_weight
    if sample_weight is not None:
        raise ValueError("Give class_weight or sample_weight, not both.")
    return x, y, weights_of_classes(y, class_weight)


def _as_arrays(name: str, part: Any) -> Any:
    def convert(leaf):
        if leaf is None:
            return None
        array = as_array(name, leaf)
        if np.issubdtype(array.dtype, np.floating):
            # NumPy would warn of a number that is too large: of one record.
            with np.errstate(all="ignore"):
                array = array.astype(keras.config.floatx(), copy=False)
        return array

    if isinstance(part, Mapping) and not isinstance(part, dict):
        part = dict(part)
    return None if part is None else keras.tree.map_structure(convert, part)


def with_texts_as_tensors(data: Any) -> Any:
    """Returns data with tensors in the place of NumPy's arrays of texts, which Keras refuses, and
    of which some texts are none to TensorFlow.

    Args:
        data: Structure of anything.
    """

    def convert(leaf):
        is_text = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "SU"
        return tf.constant(encoded(leaf)) if is_text else leaf

    return tf.nest.map_structure(convert, data)


def shares_memory(x: Any, validation_data: Any) -> bool:
    """Returns whether validation data are, in part, the memory of the training data."""
    if x is validation_data and x is not None:
        return True
    parts = [
        [leaf for leaf in tf.nest.flatten(part) if hasattr(leaf, "shape")]
        for part in (x.columns if isinstance(x, Source) else x, validation_data)
    ]
    return any(_is_same_memory(a, b) for a in parts[0] for b in parts[1])


def _is_same_memory(a: Any, b: Any) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is b
    return np.may_share_memory(a, b) or _is_same_part_of_a_file(a, b)


def _is_same_part_of_a_file(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns whether two arrays, mapped one by one, may hold bytes of one file in common."""
    one, other = _place_in_file(a), _place_in_file(b)
    if one is None or other is None or one[0] != other[0]:
        return False
    return one[1] < other[2] and other[1] < one[2]


def _place_in_file(array: np.ndarray) -> tuple[str, int, int] | None:
    """Returns (file, first byte, byte behind the last) of an array that is mapped from a file."""
    if not isinstance(array, np.memmap) or array.filename is None:
        return None
    whole = array
    while isinstance(whole.base, np.memmap):  # A slice says where the array that it is of begins.
        whole = whole.base
    first, last = _addresses(array)
    begin = whole.offset + first - _addresses(whole)[0]
    return os.path.realpath(array.filename), begin, begin + last - first


def _addresses(array: np.ndarray) -> tuple[int, int]:
    """Returns where in memory an array begins, and where it is at its end."""
    address = array.__array_interface__["data"][0]
    if not array.size:
        return address, address
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low, high = (sum(limit(step, 0) for step in steps) for limit in (min, max))
    return address + low, address + high + array.itemsize


def length(*parts: Any) -> int:
    """Returns the number of examples that all arrays share, at least one.

    Raises:
        ValueError: there are no arrays or no examples, or the lengths differ.
    """
    number = rows_of_batch(*parts)
    if not number:
        raise ValueError("The training data are empty.")
    return number


def rows_of_batch(*parts: Any) -> int:
    """Returns the number of examples that all arrays of a batch share; it may be zero.

    Raises:
        ValueError: there are no arrays, or their lengths differ.
    """
    lengths = {len(leaf) for leaf in tf.nest.flatten(parts) if leaf is not None}
    if not lengths:
        raise ValueError("There are no training data. Received: x=None.")
    if len(lengths) != 1:
        raise ValueError(
            "x, y and sample_weight must have the same length. Received lengths: "
            f"{sorted(lengths)}."
        )
    return lengths.pop()
