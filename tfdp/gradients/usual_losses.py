"""Losses of Keras that are computed for all records of a batch at once.

Keras takes the mean of what a loss function gives for every part of every record. The functions
below give each part from that part alone, so the mean is taken for each record instead.
"""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp.gradients.keras_internals import function_of_loss, mask_of

# Each number that these give follows from the last axis of targets and predictions at its place.
# Others need not be so: hinge looks at the targets of all records to learn how they are written.
_KNOWN = (
    *(keras.losses.mean_squared_error, keras.losses.mean_absolute_error),
    *(keras.losses.mean_absolute_percentage_error, keras.losses.mean_squared_logarithmic_error),
    *(keras.losses.huber, keras.losses.log_cosh, keras.losses.poisson),
    *(keras.losses.kl_divergence, keras.losses.cosine_similarity),
    *(keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy),
    *(keras.losses.categorical_crossentropy, keras.losses.categorical_focal_crossentropy),
    *(keras.losses.sparse_categorical_crossentropy, keras.losses.categorical_hinge),
)
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class RecordLosses(NamedTuple):
    """Losses, and what their gradients follow from: losses = values * factors.

    Attributes:
        losses: [n].
        values: [n], each of one record's predictions.
        factors: [n], which do not depend on predictions.
    """

    losses: tf.Tensor
    values: tf.Tensor
    factors: tf.Tensor


def losses_of_records(
    loss: Any, y: Any, y_pred: Any, sample_weight: Any = None
) -> RecordLosses | None:
    """Returns what a loss of Keras gives for each record on its own; None where that is not known,
    or cannot be told from the shapes. A record with a class that there is none of gets NaN.

    Args:
        loss: Any loss.
        y: Targets [n, ...].
        y_pred: Predictions [n, ...].
        sample_weight: A weight of each record, or None.
    """
    function, options = function_of_loss(loss)
    if not any(function is known for known in _KNOWN):
        return None
    if not all(map(_is_fixed, tf.nest.flatten(options))):
        return None
    if options.get("axis", -1) != -1 or options.get("ignore_class") is not None:
        return None
    if loss.reduction not in (*_MEANS, "sum") or loss.dtype not in ("float32", "float64"):
        return None
    of_classes = function is keras.losses.sparse_categorical_crossentropy
    if not _go_together(y, y_pred, of_classes) or mask_of(y_pred) is not None:
        return None
    if sample_weight is not None and (
        loss.reduction == "mean_with_sample_weight" or not _is_one_number(sample_weight)
    ):
        return None
    with tf.name_scope("loss"):
        predictions = keras.ops.convert_to_tensor(y_pred, dtype=loss.dtype)
        # So does Keras, whatever they are.
        targets = keras.ops.convert_to_tensor(y, dtype=loss.dtype)
        exist = None
        if of_classes:
            # Keras rounds them towards zero; XLA makes a NaN class 0.
            exist = (targets > -1) & (targets < predictions.shape[-1])
            targets = tf.where(exist, targets, tf.zeros([], targets.dtype))
        return _reduced(loss.call(targets, predictions), exist, sample_weight, loss.reduction)


def _is_fixed(option: Any) -> bool:
    """Returns whether an option is neither a tensor nor a weight, which needs its gradient."""
    return option is None or isinstance(option, (bool, int, float, str, np.ndarray, np.generic))


def _go_together(y: Any, y_pred: Any, of_classes: bool) -> bool:
    """Returns whether shapes tell that every record's predictions meet its own targets."""
    if not (tf.is_tensor(y) and tf.is_tensor(y_pred)) or y_pred.shape.rank in (None, 0, 1):
        return False
    record, prediction = y.shape[1:], y_pred.shape[1:]
    if not prediction.is_fully_defined() or 0 in prediction or not record.is_fully_defined():
        return False
    parts = list(prediction[:-1])
    if of_classes:
        return list(record) in (parts, [*parts, 1])
    return record == prediction or (list(prediction) == [1] and list(record) == [])


def _is_one_number(sample_weight: Any) -> bool:
    """Returns whether there is one number for each record."""
    return tf.is_tensor(sample_weight) and set(sample_weight.shape[1:]) <= {1}


def _reduced(values: tf.Tensor, exist: Any, sample_weight: Any, reduction: str) -> RecordLosses:
    """Returns the means or sums of [n, ...] by record.

    Args:
        values: Of every part of a record.
        exist: Whether its classes exist, or None.
        sample_weight: One for each record, or None.
        reduction: Keras' name of it.
    """
    parts = math.prod(values.shape[1:])
    if values.shape.rank > 1:
        values = tf.reduce_sum(tf.reshape(values, [-1, parts]), 1)
    share = tf.constant(1 / parts if reduction in _MEANS else 1.0, values.dtype)
    if exist is None:
        factors = tf.fill(tf.shape(values), share)
    else:
        if exist.shape.rank > 1:
            exist = tf.reduce_all(tf.reshape(exist, [-1, parts]), 1)
        factors = tf.where(exist, share, tf.constant(math.nan, values.dtype))
    if sample_weight is not None:
        factors *= tf.cast(tf.reshape(sample_weight, [-1]), values.dtype)
    return RecordLosses(values * factors, values, factors)
