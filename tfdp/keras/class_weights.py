"""Weights of examples by their classes, for arrays and for data sets."""

import numbers
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.events.arguments import real_number


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
        y: Array [n], [n, 1] or one-hot [n, classes].
        class_weight: Weights by class.

    Raises:
        ValueError: y is not one array.
        TypeError: `class_weight` is not a dict of numbers.
    """
    weights_by_class = _by_class(class_weight)
    if isinstance(y, (list, tuple, dict)) or y is None:
        raise ValueError("class_weight needs a model with one output. Use sample_weight.")
    labels = np.asarray(y)
    if labels.ndim > 1:
        is_one_hot = labels.ndim == 2 and labels.shape[-1] > 1
        labels = labels.argmax(-1) if is_one_hot else labels.reshape(len(labels), -1)[:, 0]
    weights = np.ones(len(labels), keras.config.floatx())
    for label, weight in weights_by_class.items():
        weights[labels == label] = weight
    return weights


def with_class_weights(dataset: Any, class_weight: Any) -> tf.data.Dataset:
    """Returns a data set whose examples have the weights of their classes.

    Raises:
        ValueError: its batches hold weights, no y or several outputs, or it is another kind of data
            set.
        TypeError: `class_weight` is not a dict of numbers.
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
        is_one_hot = y.shape.rank == 2 and y.shape[-1] != 1
        labels = tf.argmax(y, -1) if is_one_hot else tf.reshape(y, [tf.shape(y)[0], -1])[:, 0]
        weights = tf.ones(tf.shape(labels), keras.config.floatx())
        for label, weight in weights_by_class.items():
            weights = tf.where(tf.equal(labels, tf.cast(label, labels.dtype)), weight, weights)
        return x, y, weights

    return dataset.map(weighted)
