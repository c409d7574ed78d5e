"""Metrics of training that are released by a mechanism of their own, beside the gradients."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.events.arguments import positive_integer, real_number
from tfdp.gradients.keras_internals import mask_of

_PACKAGE = "tfdp"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateMetric(abc.ABC):
    """A value of every record, of which a step releases a noised average.

        (sum_i v_i * min(1, l2_norm_clip / |v_i|) + N(0, (noise_multiplier l2_norm_clip)^2 I)) / d

    where v_i is what `of_record` returns and d the expected number of records.

    Guarantees:
        One record moves the sum by at most `l2_norm_clip`. The event of the step holds the
        metric's `GaussianSumEvent` beside that of the gradients.

    Edge cases:
        A value with a NaN or infinity counts as zero, and so does every value of a record whose
        gradient is not finite.

    Attributes:
        noise_multiplier: Noise on the sum, divided by `l2_norm_clip`; positive.
        l2_norm_clip: Bound on the norm of a record's value.
        name: The key of the logs.
        denominator: What the noised sum is divided by; None: as the gradients'.
        output: The key or index of the output that is meant, where a model has several.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range. Without noise there is no privacy.
    """

    noise_multiplier: float
    l2_norm_clip: float = 1.0
    name: str = "metric"
    denominator: float | None = None
    output: str | int | None = None

    def __post_init__(self) -> None:
        for field in ("noise_multiplier", "l2_norm_clip"):
            value = real_number(field, getattr(self, field), minimum=0, inclusive=False)
            object.__setattr__(self, field, value)
        if self.denominator is not None:
            real_number("denominator", self.denominator, minimum=0, inclusive=False)
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name must be a text, not empty. Received: name={self.name!r}.")
        if self.name.startswith("val_"):
            raise ValueError(
                "Names that begin with val_ belong to metrics of validation data. "
                f"Received: name={self.name!r}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record's value: () or [k]."""
        return ()

    @property
    def keys(self) -> list[str]:
        """The keys of the logs, one for each number of the value."""
        return [self.name] if not self.shape else [f"{self.name}_{i}" for i in range(*self.shape)]

    @abc.abstractmethod
    def of_record(self, y: Any, y_pred: Any, loss: tf.Tensor) -> Any:
        """Returns the value of a batch of one record: a tensor of `shape`.

        Args:
            y: Labels [1, ...].
            y_pred: The model's output for it, [1, ...].
            loss: The record's loss, a scalar, without weight penalties.
        """

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, by name, for Keras' registry."""
        return {
            field.name: keras.saving.serialize_keras_object(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PrivateMetric":
        """Returns the metric that `get_config` described."""
        return cls(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateAccuracy(PrivateMetric):
    """Share of records whose label is predicted; 0 or 1 for a record.

    As in Keras, binary, categorical or sparse accuracy is taken by the shapes of labels and
    outputs. Of a record with many positions it is the share of those that its mask keeps.
    """

    name: str = "accuracy"

    def of_record(self, y: Any, y_pred: Any, loss: tf.Tensor) -> Any:
        return _mean(_accuracy(y, y_pred), mask_of(y_pred))


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateLoss(PrivateMetric):
    """The loss of a record, cut off at `l2_norm_clip`.

    The logs show it with the weight penalties, which depend on no record. It has the record's
    sample weight in it, also where the query weights records: the bound is that of the product.
    """

    name: str = "loss"

    def of_record(self, y: Any, y_pred: Any, loss: tf.Tensor) -> Any:
        return loss


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateClassCounts(PrivateMetric):
    """How many records of each class a step has, or are predicted to be of it: `counts_0`, ...

    Attributes:
        num_classes: How many classes there are; a label outside of them counts in none.
        predicted: Whether predictions are counted in place of labels.
    """

    name: str = "counts"
    denominator: float | None = 1.0
    num_classes: int
    predicted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_integer("num_classes", self.num_classes)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_classes,)

    def of_record(self, y: Any, y_pred: Any, loss: tf.Tensor) -> Any:
        label = _predicted_class(y_pred) if self.predicted else _label(y, y_pred)
        if label.shape.num_elements() != 1:
            raise ValueError(
                f"Records have several labels, of which {self.name!r} would count each: a record "
                "counts in one class. Take a tfdp.keras.PrivateMean of a function of your own. "
                f"Received: labels of shape {label.shape}."
            )
        return tf.one_hot(tf.reshape(label, []), self.num_classes)


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateMean(PrivateMetric):
    """Mean of any function of labels and outputs, such as `keras.metrics.mean_absolute_error`.

    Attributes:
        fn: Called with (y_true, y_pred) of a batch of one; what it returns is averaged over the
            record's positions that its mask keeps.
    """

    fn: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        # A method of a metric, such as update_state, keeps what it is given like the metric.
        owner = getattr(self.fn, "__self__", None)
        has_state = any(isinstance(part, keras.metrics.Metric) for part in (self.fn, owner))
        if has_state or not callable(self.fn):
            raise TypeError(
                "fn must be a function of (y_true, y_pred), without state, such as "
                f"keras.metrics.mean_absolute_error. Received: fn={self.fn!r}."
            )

    def of_record(self, y: Any, y_pred: Any, loss: tf.Tensor) -> Any:
        return _mean(self.fn(y, y_pred), mask_of(y_pred))


def check_metrics(metrics: Any) -> tuple[PrivateMetric, ...]:
    """Returns the metrics as a tuple.

    Raises:
        TypeError: something is no `PrivateMetric`.
        ValueError: two have one name.
    """
    if not isinstance(metrics, (list, tuple)) or not all(
        isinstance(metric, PrivateMetric) for metric in metrics
    ):
        raise TypeError(
            "private_metrics must be a list of tfdp.keras.PrivateMetric objects, such as "
            f"[tfdp.keras.PrivateAccuracy(noise_multiplier=20.0)]. Received: {metrics!r}."
        )
    keys = [key for metric in metrics for key in metric.keys]
    if len(set(keys)) < len(keys):
        raise ValueError(f"Every private metric needs a name of its own. Received: {keys}.")
    return tuple(metrics)


def values_of_record(
    metrics: Sequence[PrivateMetric], y: Any, y_pred: Any, loss: tf.Tensor
) -> list[tf.Tensor]:
    """Returns the value of every metric, for a batch of one record; zeros where it is not finite.

    Args:
        metrics: Whose values are meant.
        y: Labels [1, ...], of all outputs.
        y_pred: Outputs [1, ...] of the model.
        loss: The record's loss, a scalar, without weight penalties.

    Raises:
        ValueError: a model of several outputs, and a metric that names none; or a value of another
            shape than the metric says.
    """
    result = []
    for metric in metrics:
        value = metric.of_record(*_of_output(metric, y, y_pred), loss)
        value = tf.cast(tf.convert_to_tensor(value), tf.float32)
        if value.shape.num_elements() != math.prod(metric.shape):
            raise ValueError(
                f"The value of a record for the private metric {metric.name!r} must have shape "
                f"{metric.shape}. Received: {value.shape}."
            )
        value = tf.reshape(value, metric.shape)
        is_finite = tf.reduce_all(tf.math.is_finite(value))
        result.append(tf.where(is_finite, value, tf.zeros_like(value)))
    return result


def noise_beside(together: float, factor: int, besides: Sequence[float]) -> float:
    """Returns the noise multiplier of the gradients' query for a given one of the whole step.

        factor^2 (z^-2 + sum_m z_m^-2) = together^-2, solved for z

    Args:
        together: The noise multiplier of gradients and all else as one Gaussian sum.
        factor: How often a query's bound one privacy unit can move its sum.
        besides: Noise multipliers of what a step releases beside the gradients.

    Raises:
        ValueError: that alone costs as much as the step may.
    """
    if not besides:
        return together * factor
    remaining = (together * factor) ** -2 - math.fsum(z**-2 for z in besides)
    if remaining <= 0:
        raise ValueError(
            "Private metrics and batch statistics alone cost more than the budget allows a step: "
            "give them noise multipliers well above "
            f"{together * factor * math.sqrt(len(besides)):.4g}. Received: {list(besides)}."
        )
    # Rounding must not take the step over its budget.
    return remaining**-0.5 * (1 + 1e-9)


class ShownMetrics:
    """The averages over an epoch of what the steps released, which `fit` shows.

    Attributes:
        metrics: Whose values these are.
    """

    def __init__(self, metrics: Sequence[PrivateMetric]):
        self.metrics = tuple(metrics)
        self._means = {key: keras.metrics.Mean(name=key) for m in metrics for key in m.keys}

    @property
    def variables(self) -> list[Any]:
        """The variables of the averages."""
        return [v for mean in self._means.values() for v in mean.variables]

    def update(self, released: Sequence[tf.Tensor], penalty: Any) -> None:
        """Adds what a step released.

        Args:
            released: The noised value of every metric.
            penalty: Weight penalties, which are part of the loss that is shown.
        """
        for metric, value in zip(self.metrics, released, strict=True):
            if isinstance(metric, PrivateLoss):
                value += tf.cast(penalty, value.dtype)
            for key, number in zip(metric.keys, tf.unstack(tf.reshape(value, [-1])), strict=True):
                self._means[key].update_state(number)

    def result(self) -> dict[str, Any]:
        """Returns the averages, by their keys."""
        return {key: mean.result() for key, mean in self._means.items()}

    def reset_state(self) -> None:
        """Begins an epoch."""
        for mean in self._means.values():
            mean.reset_state()


def _of_output(metric: PrivateMetric, y: Any, y_pred: Any) -> tuple[Any, Any]:
    """Returns labels and output that a metric is about."""
    if metric.output is not None:
        if isinstance(y_pred, dict):
            outputs = list(y_pred)
        else:
            outputs = list(range(len(y_pred))) if isinstance(y_pred, (list, tuple)) else []
        if metric.output not in outputs:
            wanted = f"must be one of {outputs}" if outputs else "is for models of several outputs"
            raise ValueError(
                f"output of the private metric {metric.name!r} {wanted}. Received: "
                f"output={metric.output!r}."
            )
        return y if y is None else y[metric.output], y_pred[metric.output]
    if not isinstance(metric, PrivateLoss) and len(tf.nest.flatten(y_pred)) != 1:
        raise ValueError(
            f"The model has several outputs. Say which one the private metric {metric.name!r} is "
            "about: output=<its key or index>."
        )
    return y, y_pred


def _mean(values: Any, mask: Any) -> tf.Tensor:
    values = tf.cast(tf.convert_to_tensor(values), tf.float32)
    if mask is None or mask.shape.rank > values.shape.rank:
        return tf.reduce_mean(values)
    missing = values.shape.rank - mask.shape.rank
    kept = tf.reshape(tf.cast(mask, tf.float32), tf.concat([tf.shape(mask), [1] * missing], 0))
    kept = tf.broadcast_to(kept, tf.shape(values))
    return tf.math.divide_no_nan(tf.reduce_sum(values * kept), tf.reduce_sum(kept))


def _is_sparse(y: tf.Tensor, y_pred: tf.Tensor) -> bool:
    return y.shape.rank < y_pred.shape.rank or y.shape[-1] == 1


def _accuracy(y: Any, y_pred: Any) -> Any:
    if y_pred.shape.rank < 2 or y_pred.shape[-1] == 1:
        return keras.metrics.binary_accuracy(y, y_pred)
    if _is_sparse(y, y_pred):
        return keras.metrics.sparse_categorical_accuracy(y, y_pred)
    return keras.metrics.categorical_accuracy(y, y_pred)


def _predicted_class(y_pred: Any) -> tf.Tensor:
    if y_pred.shape[-1] == 1:
        return tf.cast(y_pred > 0.5, tf.int32)
    return tf.argmax(y_pred, axis=-1, output_type=tf.int32)


def _label(y: Any, y_pred: Any) -> tf.Tensor:
    if y_pred.shape[-1] == 1 or _is_sparse(y, y_pred):
        return tf.cast(y, tf.int32)
    return tf.argmax(y, axis=-1, output_type=tf.int32)
