"""Checks of what `fit` and `train_on_batch` are given.

Only dtypes, shapes and structures decide, which are public; never what the data hold. A record
with values that cannot be used contributes nothing (`tfdp.query.norm_factors`).
"""

import logging
import math
import numbers
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import positive_integer, real_number
from tfdp.events.step import releases
from tfdp.gradients.inputs import advice_for, describe_leaf
from tfdp.query.dp_query import DPQuery
from tfdp.query.parts import denominators
from tfdp.sampling import SamplingPolicy

_logger = logging.getLogger("tfdp")


def check_counts(
    epochs: Any, initial_epoch: Any, steps_per_epoch: Any, steps_per_execution: Any
) -> None:
    """Refuses numbers of epochs and steps that would train nothing, or that are none.

    Args:
        epochs: As given to `fit`.
        initial_epoch: Likewise.
        steps_per_epoch: Likewise.
        steps_per_execution: As given to `compile`.

    Raises:
        TypeError: a number is not an integer.
        ValueError: it is too small.
    """
    positive_integer("epochs", epochs)
    positive_integer("steps_per_execution", steps_per_execution)
    if steps_per_epoch is not None:
        positive_integer("steps_per_epoch", steps_per_epoch)
    if isinstance(initial_epoch, bool) or not isinstance(initial_epoch, numbers.Integral):
        raise TypeError(
            f"initial_epoch must be an integer. Received: initial_epoch={initial_epoch!r}."
        )
    if initial_epoch < 0:
        raise ValueError(
            f"initial_epoch must be at least 0. Received: initial_epoch={initial_epoch!r}."
        )


def check_order(sampling: Any, shuffle: bool) -> None:
    """Refuses arguments about the order of records that are not a policy.

    Raises:
        TypeError: `sampling` is no policy.
        ValueError: records are to stay in the order of the data.
    """
    if sampling is not None and not isinstance(sampling, SamplingPolicy):
        raise TypeError(
            f"sampling must be a policy from tfdp.sampling. Received: sampling={sampling!r}."
        )
    if not shuffle:
        raise ValueError("The order of records is decided by `sampling`; leave `shuffle` out.")


def check_validation(data: Any, steps: Any, batch_size: Any, frequency: Any) -> None:
    """Refuses what validates nothing before anything is charged: Keras looks at it after an epoch.

    Args:
        data: `validation_data` of `fit`.
        steps: `validation_steps`.
        batch_size: `validation_batch_size`.
        frequency: `validation_freq`.

    Raises:
        TypeError: the data are neither arrays nor a data set, or a number is no integer.
        ValueError: a number is below 1, or the data are a tuple of another length.
    """
    advice = "Pass (x, y), (x, y, sample_weight), or a data set."
    if isinstance(data, (str, bytes, numbers.Number)):
        raise TypeError(
            f"validation_data must hold arrays. {advice} Received: validation_data={data!r}."
        )
    if isinstance(data, (list, tuple)) and not 1 <= len(data) <= 3:
        raise ValueError(f"validation_data has {len(data)} parts, which mean nothing. {advice}")
    if steps is not None:
        positive_integer("validation_steps", steps)
    if batch_size is not None:
        positive_integer("validation_batch_size", batch_size)
    if not isinstance(frequency, (list, tuple, set, frozenset)):
        positive_integer("validation_freq", frequency)


def check_beside_dataset(arguments: dict[str, Any]) -> None:
    """Refuses arguments of `fit` that a data set has itself.

    Raises:
        TypeError: x is no data set but a sparse matrix.
        ValueError: names them, and where they belong.
    """
    _check_dense("x", arguments["x"])
    places = {
        "y": "put the targets into the data set: it yields (x, y)",
        "sample_weight": "put the weights into the data set: it yields (x, y, sample_weight)",
        "batch_size": "the data set has batches already: leave it out",
        "validation_split": "only arrays can be split: pass validation_data",
    }
    for name, advice in places.items():
        if arguments[name] is not None and not (name == "validation_split" and not arguments[name]):
            raise ValueError(f"{name} was given beside a data set; {advice}.")


def as_array(name: str, leaf: Any) -> np.ndarray:
    """Returns data as an array of numbers, truth values or strings.

    A tensor of strings becomes an array of bytes, in which NumPy drops zeros at the end of each.

    Args:
        name: "x", "y" or "sample_weight".
        leaf: An array, tensor or nested list of numbers.

    Raises:
        TypeError: it is ragged or sparse, or of a dtype that holds no numbers.
        ValueError: it has no axis of examples.
    """
    _check_dense(name, leaf)
    try:
        array = np.asarray(leaf)
        if tf.is_tensor(leaf) and leaf.dtype == tf.string:
            array = array.astype(np.bytes_)
    except ValueError as error:
        raise TypeError(
            f"{name} must hold arrays of numbers. Received lists of different lengths. "
            f"{advice_for(np.array(None))}"
        ) from error
    check_dtype(name, array, strings=name == "x")
    if array.ndim == 0:
        raise ValueError(
            f"{name} must hold arrays with a leading axis of examples. Received a single value of "
            f"dtype {array.dtype}. A list stands for several inputs: make it one array."
        )
    return array


def _check_dense(name: str, leaf: Any) -> None:
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) or hasattr(leaf, "tocoo"):
        how = "to_tensor()" if isinstance(leaf, tf.RaggedTensor) else "tf.sparse.to_dense, toarray"
        raise TypeError(
            f"{name} must be dense. Received a {type(leaf).__name__} of shape {leaf.shape}: "
            f"convert it ({how})."
        )


def check_dtype(name: str, leaf: Any, *, strings: bool) -> None:
    """Refuses a leaf of data whose dtype is not of numbers or truth values, or else of strings.

    Raises:
        TypeError: says dtype and shape, and what to do.
    """
    kind = getattr(leaf.dtype, "kind", None)
    if kind in ("S", "U"):
        dtype = tf.string
    elif kind in ("O", "M", "m", "V"):
        dtype = None
    else:
        dtype = tf.as_dtype(leaf.dtype)
    if dtype is not None:
        is_number = dtype.is_bool or dtype.is_integer or dtype.is_floating
        if is_number or (strings and dtype == tf.string):
            return
    advice = advice_for(leaf)
    if dtype is not None and dtype.is_complex:
        advice = "Give real and imaginary parts, as two channels for instance."
    elif kind == "O":
        texts = " or, for texts, .astype(str)" if strings else ""
        advice += f' NumPy\'s .astype("float32"){texts} does the former.'
    elif dtype == tf.string:
        advice = "Encode strings as integers first, for instance with keras.layers.StringLookup."
        if kind == "U":
            advice += ' Where they spell numbers, NumPy\'s .astype("float32") reads them.'
    raise TypeError(f"{name} must hold numbers. Received {describe_leaf(leaf)}. {advice}".strip())


def check_examples(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> None:
    """Refuses examples of dtypes that a model cannot take, and targets that are missing.

    Args:
        model: A compiled model.
        x: Structure of arrays, tensors or `tf.TensorSpec`; at least one example, or none.
        y: As `x`, or None.
        sample_weight: As `x`, or None.

    Raises:
        TypeError: a dtype holds no numbers.
        ValueError: there is no x, or no y although there is a loss.
    """
    if not any(leaf is not None for leaf in tf.nest.flatten(x)):
        raise ValueError("There are no training data. Received: x=None.")
    declared = getattr(model, "inputs", None)
    strings = not declared or any(tf.as_dtype(t.dtype) == tf.string for t in declared)
    for name, part in (("x", x), ("y", y), ("sample_weight", sample_weight)):
        for leaf in tf.nest.flatten(part):
            if leaf is not None:
                check_dtype(name, leaf, strings=strings and name == "x")
    if y is None and getattr(model, "loss", None) is not None and not has_own_loss(model):
        raise ValueError(
            f"The model was compiled with loss={model.loss!r}, which needs targets. Received: "
            "y=None. Give y, or compile without a loss where layers add theirs (add_loss)."
        )


def has_own_loss(model: keras.Model) -> bool:
    """Returns whether a model, or its class, has a `compute_loss` of its own, not Keras'."""
    return _is_own(model, "compute_loss")


def has_own_metrics(model: keras.Model) -> bool:
    """Returns whether a model, or its class, has a `compute_metrics` of its own, not Keras'."""
    return _is_own(model, "compute_metrics")


def _is_own(model: keras.Model, method: str) -> bool:
    return getattr(getattr(model, method), "__func__", None) is not getattr(keras.Model, method)


def loss_axes(y_pred: Any) -> tuple[tuple[int | None, ...], ...]:
    """Returns, for every output, the axes that the losses of one record have before Keras takes
    their mean: all of the prediction's but the first, of records, and the last, of classes.
    """
    return tuple(tuple(leaf.shape[1:-1]) for leaf in tf.nest.flatten(y_pred))


def check_weights(sample_weight: Any, axes: tuple[tuple[int | None, ...], ...] | None) -> None:
    """Refuses sample weights with axes that the losses do not have.

    Args:
        sample_weight: Structure of weights, [n] or [n, ...], or None.
        axes: From `loss_axes`; None where the model's own `compute_loss` says what weights mean.

    Raises:
        ValueError: says both shapes.
    """
    if axes is None:
        return
    weights = tf.nest.flatten(sample_weight)
    if len(weights) == 1:  # The same for all outputs.
        weights *= len(axes)
    for weight, output in zip(weights, axes, strict=False):
        if weight is None:
            continue
        inner = list(weight.shape[1:])
        while inner and inner[-1] == 1:
            inner.pop()
        pairs = zip(inner, output, strict=False)
        if len(inner) > len(output) or not all(a in (1, None, b) or b is None for a, b in pairs):
            raise ValueError(
                "sample_weight must hold one weight for each example, [n], or for each part of an "
                f"example that has a loss of its own, [n{''.join(f', {a}' for a in output)}]. "
                f"Received shape [n{''.join(f', {a}' for a in weight.shape[1:])}]."
            )


def check_weights_of_records(sample_weight: Any) -> None:
    """Refuses sample weights that are not one number for each record.

    Raises:
        ValueError: there are several, for outputs or parts of an example.
    """
    weights = tf.nest.flatten(sample_weight)
    if len(weights) > 1 or any(w is not None and set(w.shape[1:]) - {1} for w in weights):
        shapes = [
            None if w is None else f"[n{''.join(f', {a}' for a in w.shape[1:])}]" for w in weights
        ]
        raise ValueError(
            "The query weights whole records: sample_weight must hold one weight for each example, "
            f"[n]. Received weights of shapes {', '.join(map(str, shapes))}. For weights of "
            "outputs or parts use tfdp.GaussianAverageQuery, where they belong to the loss."
        )


def weights_of_records(sample_weight: Any) -> tf.Tensor | None:
    """Returns sample weights as [n]; None where there are none."""
    (weights,) = tf.nest.flatten(sample_weight)
    return None if weights is None else tf.reshape(weights, [-1])


def check_validation_split(validation_split: Any) -> None:
    """Refuses what is not a share.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not between 0 and 1.
    """
    real_number("validation_split", validation_split, minimum=0, inclusive=True, maximum=1)


def advice_of_keras_2(value: Any) -> str:
    """Returns what to do about an object of Keras 2; "" for any other."""
    if type(value).__module__.startswith("tf_keras"):
        return " It is one of tf_keras: Keras 3 is needed (import keras)."
    return ""


def check_learning_rate(learning_rate: Any) -> None:
    """Refuses a learning rate that is known now and is not finite.

    Raises:
        ValueError: says what it is.
    """
    if tf.is_tensor(learning_rate) and not hasattr(learning_rate, "numpy"):
        return
    if callable(learning_rate) and not isinstance(learning_rate, keras.Variable):
        return
    value = learning_rate.value if isinstance(learning_rate, keras.Variable) else learning_rate
    # A variable of several replicas is no number, but a tensor can be made of it.
    rate = float(tf.convert_to_tensor(value)) if isinstance(value, tf.Variable) else float(value)
    if not math.isfinite(rate):
        raise ValueError(f"The learning rate must be finite. Received: learning_rate={rate!r}.")


def warn_of_denominator(query: DPQuery, records: float | None) -> None:
    """Logs a warning where an average is over half, or twice, as many records as are expected.

    A denominator of 1 says that the sum is wanted.

    Args:
        query: The mechanism.
        records: Expected number in a sample; None where it is not known.
    """
    for denominator in sorted(set(denominators(query)) - {1.0}):
        if records is not None and not 0.5 < denominator / records < 2:
            _logger.warning(
                "The query divides by denominator=%g, and a sample has %g records on average: "
                "gradients are %.3g times an average. Give the expected number of records, or "
                "denominator=1 where you want the sum.",
                denominator,
                records,
                records / denominator,
            )


def warn_of_no_privacy(event: Event) -> None:
    """Logs a warning where a step releases something without noise.

    Args:
        event: What the step releases.
    """
    reasons = [release.why_not_private() for release in releases(event, in_parts=True)]
    if any(reasons):
        _logger.warning(
            "This training is not private, and epsilon is infinite: %s.",
            "; ".join(dict.fromkeys(reason for reason in reasons if reason)),
        )
