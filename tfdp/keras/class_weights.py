"""Weights of examples by their classes, for arrays and for data sets."""

import numbers
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.events.arguments import real_number

_ONE_CLASS = "class_weight needs one class of every example: y must be [n], [n, 1] or [n, classes]."


def _by_class(class_weight: Any) -> dict[int, float]:
    """Returns class weights by class.

    Raises:
        TypeError: they are not a mapping of integers to numbers.
        ValueError: a class or a weight is negative, or a weight is not finite.
    """
    if not isinstance(class_weight, Mapping):
        raise TypeError(
            "class_weight must be a dict of classes and weights, such as {0: 1.0, 1: 5.0}. "
            f"Received: class_weight={class_weight!r}."
        )
    for label in class_weight:
        if isinstance(label, bool) or not isinstance(label, numbers.Integral):
            raise TypeError(
                "The keys of class_weight must be classes as they are in y, integers from 0. "
                f"Received: {label!r}."
            )
        if label < 0:
            raise ValueError(f"Classes are integers from 0. Received in class_weight: {label!r}.")
    return {
        int(label): real_number(f"class_weight[{label}]", weight, minimum=0, inclusive=True)
        for label, weight in class_weight.items()
    }


def weights_of_classes(y: Any, class_weight: Any) -> np.ndarray:
    """Returns the weight of every example by its class; 1 for a class that has none, and for what
    is no class.

    Args:
        y: Array [n], [n, 1] or one-hot [n, classes]. Floating-point classes are rounded.
        class_weight: Weights by class.

    Raises:
        ValueError: y is not one array, or has more axes.
        TypeError: `class_weight` is not a dict of numbers.
    """
    weights_by_class = _by_class(class_weight)
    if isinstance(y, (list, tuple, dict)) or y is None:
        raise ValueError("class_weight needs a model with one output. Use sample_weight.")
    labels = np.asarray(y)
    if labels.ndim > 2:
        raise ValueError(f"{_ONE_CLASS} Received y of {labels.ndim} axes.")
    if labels.ndim == 2:
        labels = labels.argmax(-1) if labels.shape[-1] > 1 else labels[:, 0]
    if labels.dtype.kind == "f":
        labels = np.round(labels.astype(np.float64))  # In which every class is itself.
    weights = np.ones(len(labels), keras.config.floatx())
    for label, weight in weights_by_class.items():
        weights[labels == label] = weight
    return weights


def with_class_weights(dataset: Any, class_weight: Any) -> tf.data.Dataset:
    """Returns a data set whose examples have the weights of their classes.

    Raises:
        ValueError: its batches hold weights, no y or several outputs, it is another kind of data
            set, or y has more axes than two or a number of them that is not known.
        TypeError: `class_weight` is not a dict of numbers, or y holds no numbers.
    """
    weights_by_class = _by_class(class_weight)
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            "class_weight goes with arrays or a tf.data.Dataset. Let the batches hold the weights: "
            f"(x, y, sample_weight). Received a {type(dataset).__name__}."
        )

    def weighted(*batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(
            batch[0] if len(batch) == 1 else batch
        )
        if sample_weight is not None:
            raise ValueError("Give class_weight or sample_weight, not both.")
        if not tf.is_tensor(y):
            raise ValueError("class_weight needs a model with one output. Use sample_weight.")
        labels = _classes(y)
        weights = tf.ones(tf.shape(labels), keras.config.floatx())
        for label, weight in weights_by_class.items():
            if label <= labels.dtype.max:
                weights = tf.where(tf.equal(labels, tf.cast(label, labels.dtype)), weight, weights)
        return x, y, weights

    return dataset.map(weighted)


def _classes(y: tf.Tensor) -> tf.Tensor:
    """Returns int64 or float64 [n], in which no class is taken for another: of labels of another
    type, 300 might be 44.
    """
    if not (y.dtype.is_integer or y.dtype.is_floating or y.dtype.is_bool):
        raise TypeError(f"The classes in y must be numbers. Received: {y.dtype.name}.")
    if y.shape.rank not in (1, 2):
        raise ValueError(f"{_ONE_CLASS} Received y of shape {y.shape}.")
    # No unsigned integer becomes a class: the largest are negative.
    numbers_of = tf.round(tf.cast(y, tf.float64)) if y.dtype.is_floating else tf.cast(y, tf.int64)
    if y.shape.rank == 1:
        return numbers_of
    if y.shape[1] == 1:
        return numbers_of[:, 0]
    # As many as there are columns, which the graph may not know.
    one_hot = tf.cast(tf.argmax(tf.cast(y, tf.float64), -1), numbers_of.dtype)
    return one_hot if y.shape[1] else tf.where(tf.shape(y)[1] == 1, numbers_of[:, 0], one_hot)
