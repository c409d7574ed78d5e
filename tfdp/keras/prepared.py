"""What a model needs before its first private step: all variables, and the loss of a record."""

import dataclasses
import logging
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients import RefusedKernelError
from tfdp.gradients.keras_internals import layers_in, loops_in
from tfdp.keras import distribution, inputs, metric_updates
from tfdp.keras.layer_checks import check_layers
from tfdp.keras.private_metrics import PrivateMetric, ShownMetrics
from tfdp.keras.records import RecordLoss, loss_in_training

_logger = logging.getLogger("tfdp")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What was made of a compiled model.

    Attributes:
        record_loss: The loss of a record.
        loss_axes: Axes of the losses of one record (`inputs.loss_axes`); None for a `compute_loss`
            of the model's own.
        shown: What logs show in place of Keras' metrics, or None.
    """

    record_loss: RecordLoss
    loss_axes: tuple[tuple[int | None, ...], ...] | None
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
        RefusedKernelError: the model does not take a record of zeros and empty texts.
        ValueError: sample weights have axes that the losses do not have.
    """
    x, y, sample_weight = tf.nest.map_structure(
        lambda a: None if a is None else tf.zeros_like(a), (x, y, sample_weight)
    )
    strategy, optimizer = model.distribute_strategy, model.optimizer
    with strategy.scope():
        # Without a loss in compile only a call tells whether layers add any.
        try:
            y_pred = model(x) if model.loss is None else _outputs(model, x)
        except (tf.errors.AbortedError, tf.errors.UnimplementedError):
            raise  # TensorFlow has no kernel for such shapes or types, whatever a record holds.
        except tf.errors.OpError as error:
            raise RefusedKernelError(
                "The model was called on a record of zeros and empty texts, of which a layer or an "
                "operation says: "
                f"{error.message} What ends the run for some records would tell of them. Take what "
                "accepts all (a lookup with num_oov_indices=1), or do it where data are read, "
                "before they are sampled."
            ) from error
        loss_axes = None if inputs.has_own_loss(model) else inputs.loss_axes(y_pred)
        inputs.check_weights(sample_weight, loss_axes)
        check_layers(model)
        losses = [tf.zeros([], loss.dtype) for loss in model.losses]
        with metric_updates.creating(model) as scope, model.losses_of_record(scope):
            # A StatelessScope hides the losses that layers have added.
            scope.losses.extend(losses)
            loss_in_training(model, x, y, y_pred, sample_weight)
            model.compute_metrics(x, y, y_pred, sample_weight)
        metrics = optimizer.private_metrics
        shown = ShownMetrics(metrics) if metrics else None
        model.reset_metrics()
        optimizer.build(model.trainable_variables)
    distribution.check_variables(strategy, [*model.variables, *optimizer.variables])
    inputs.warn_of_no_privacy(optimizer._step().event_of_state(None))
    _warn_of_mixing(keras.tree.flatten(model.loss))
    return Prepared(RecordLoss(model), loss_axes, shown)


def check_reductions(model: keras.Model, sample_weight: Any) -> None:
    """Refuses sample weights where a loss divides by them: that of one record would not change.

    Args:
        model: A private model that is compiled.
        sample_weight: Structure of weights, or None.

    Raises:
        ValueError: a loss has reduction="mean_with_sample_weight", and there are weights.
    """
    if all(w is None for w in tf.nest.flatten(sample_weight)):
        return
    if model.optimizer.query.takes_weights:  # The loss is given none.
        return
    losses = keras.tree.flatten(model.loss)
    if any(getattr(loss, "reduction", None) == "mean_with_sample_weight" for loss in losses):
        raise ValueError(
            'A loss with reduction="mean_with_sample_weight" divides by the sum of the weights. '
            "It is called on one record at a time, whose weight would be divided by itself and "
            'change nothing. Use reduction="sum_over_batch_size", or leave sample_weight and '
            "class_weight out."
        )


def _warn_of_mixing(losses: list[Any]) -> None:
    """Logs a warning where Keras' losses would compare the records of a batch."""
    for loss in losses:
        found = keras.losses.get(loss) if isinstance(loss, str) else loss
        if isinstance(found, (keras.losses.Dice, keras.losses.Tversky)):
            mixes = found.axis is None or 0 in keras.tree.flatten(found.axis)
        else:
            mixes = isinstance(found, keras.losses.Circle) or any(
                found is function
                for function in (keras.losses.circle, keras.losses.dice, keras.losses.tversky)
            )
        if mixes:
            _logger.warning(
                "In Keras the loss %s compares the records of a batch. Here it is called on one "
                "record at a time, so that it is another loss. Dice and Tversky of each record: "
                "give axis, all axes but the first.",
                getattr(found, "name", getattr(found, "__name__", found)),
            )


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
