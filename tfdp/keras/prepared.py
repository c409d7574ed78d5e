"""What a model needs before its first private step: all variables, and the loss of a record."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import layers_in, loops_in
from tfdp.keras import distribution, inputs, metric_updates, validation
from tfdp.keras.private_metrics import PrivateMetric, ShownMetrics
from tfdp.keras.records import RecordLoss


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What was made of a compiled model.

    Attributes:
        record_loss: The loss of a record.
        loss_axes: Axes of the losses of one record (`inputs.loss_axes`).
        shown: What logs show in place of Keras' metrics, or None.
    """

    record_loss: RecordLoss
    loss_axes: tuple[tuple[int | None, ...], ...]
    shown: ShownMetrics | None

    @property
    def private_metrics(self) -> tuple[PrivateMetric, ...]:
        """Whose values are shown."""
        return () if self.shown is None else self.shown.metrics


def prepare(model: keras.Model, x: Any, y: Any, sample_weight: Any) -> Prepared:
    """Creates all variables outside of any graph, from the shapes of one example; values do not
    matter.

    Args:
        model: A private model that is compiled.
        x: Of the example, with an axis of examples in front.
        y: Likewise, or None.
        sample_weight: Likewise.

    Raises:
        NotPrivateError: a layer mixes records, or replicas do not share a variable.
        ValueError: sample weights have axes that the losses do not have.
    """
    x, y, sample_weight = tf.nest.map_structure(
        lambda a: None if a is None else tf.zeros_like(a), (x, y, sample_weight)
    )
    strategy, optimizer = model.distribute_strategy, model.optimizer
    with strategy.scope():
        y_pred = _outputs(model, x)
        loss_axes = inputs.loss_axes(y_pred)
        inputs.check_weights(sample_weight, loss_axes)
        validation.check_layers(model)
        with metric_updates.creating(model):
            model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
            model.compute_metrics(x, y, y_pred, sample_weight)
        metrics = optimizer.private_metrics
        shown = ShownMetrics(metrics) if metrics else None
        model.reset_metrics()
        optimizer.build(model.trainable_variables)
    distribution.check_variables(strategy, [*model.variables, *optimizer.variables])
    inputs.warn_of_no_privacy(optimizer._step().event_of_state(None))
    return Prepared(RecordLoss(model), loss_axes, shown)


def _outputs(model: keras.Model, x: Any) -> Any:
    """Returns tensors like those that a model makes of an example."""
    is_built = all(layer.built for layer in layers_in(model, deep=True))
    is_dense = all(isinstance(leaf, tf.Tensor) for leaf in tf.nest.flatten(x))
    if not (is_built and is_dense and loops_in(model)):
        return model(x)
    # Outside of a graph a loop takes its steps one by one, milliseconds each.
    example = tf.nest.map_structure(lambda t: keras.KerasTensor(t.shape, t.dtype.name), x)
    specs = model.compute_output_spec(example)
    if any(None in spec.shape for spec in tf.nest.flatten(specs)):
        return model(x)
    return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
