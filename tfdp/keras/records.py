"""The loss of one record, exactly as the model would compute it for a batch of one."""

import inspect
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients import LayeredLoss
from tfdp.gradients.keras_internals import attach_mask, loss_of_output, mask_of
from tfdp.gradients.usual_losses import RecordLosses, losses_of_records
from tfdp.keras import batch_statistics
from tfdp.keras.inputs import has_own_loss, weights_of_records
from tfdp.keras.private_metrics import values_of_record


def loss_in_training(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Returns what the model's own `compute_loss` returns in a training step of Keras, which tells
    it that it is one, where it takes `training`.

    Args:
        model: A compiled model.
        x: As in `keras.Model.compute_loss`.
        y: As there.
        y_pred: As there.
        sample_weight: As there.
    """
    knows = "training" in inspect.signature(model.compute_loss).parameters
    told = {"training": True} if knows else {}
    return model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **told)


class RecordLoss(LayeredLoss):
    """What `clipped_gradient_sum` differentiates: the loss of (x, y, sample_weight).

    The loss is the model's own `compute_loss`, so sample weights, masks, `add_loss` and custom
    losses mean what they mean in Keras, without the weight penalties, which do not depend on the
    record. Where the query weights records itself, the loss is that without sample weights.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._masked: list[bool] = []

    @property
    def model(self) -> keras.Layer:
        return self._model

    def forward(self, examples: Any, scope: keras.StatelessScope) -> Any:
        if not self._moments:
            return self._model(examples[0], training=True)
        with batch_statistics.collecting() as found:
            outputs = self._model(examples[0], training=True)
        return outputs, found

    def loss(self, example: Any, outputs: Any, scope: keras.StatelessScope) -> Any:
        x, y, weight = example
        model = self._model
        outputs, found = outputs if self._moments else (outputs, {})
        sample_weight = None if self.is_weighed else weight
        with model.losses_of_record(scope):
            loss = loss_in_training(model, x, y, outputs, sample_weight)
        loss = tf.reshape(tf.cast(loss, tf.float64 if loss.dtype == tf.float64 else tf.float32), [])
        # Keras attaches the mask of padded time steps to the tensor. A stacked copy of the tensor
        # has no mask, so the mask is returned beside it.
        masks = [mask_of(leaf) for leaf in tf.nest.flatten(outputs)]
        self._masked = [mask is not None for mask in masks]
        aux = (loss, (outputs, [mask for mask in masks if mask is not None]))
        metrics = model.optimizer.private_metrics
        if not metrics and not self._moments:
            return loss, aux
        weights = weights_of_records(weight) if self.is_weighed else None
        shown = loss if weights is None else loss * tf.cast(tf.reshape(weights, []), loss.dtype)
        values = values_of_record(metrics, y, outputs, shown)
        values += batch_statistics.values_of_record(self._moments, found)
        # Nothing raw is needed where the logs hold private metrics.
        return loss, (() if metrics else aux, values)

    def losses_of_records(
        self, examples: Any, outputs: Any, scope: keras.StatelessScope
    ) -> tuple[RecordLosses, Any] | None:
        _, y, weight = examples
        model = self._model
        if has_own_loss(model) or model.optimizer.private_metrics or self._moments:
            return None
        with model.losses_of_record(scope):
            if model.losses:  # A class may have some of its own.
                return None
        if not (tf.is_tensor(y) and tf.is_tensor(outputs)):
            return None
        loss = loss_of_output(model, y, outputs)
        found = losses_of_records(loss, y, outputs, None if self.is_weighed else weight)
        if found is None:
            return None
        self._masked = [False]
        return found, (found.losses, (tf.expand_dims(outputs, 1), []))

    def unbatch(self, outputs: Any) -> Any:
        """Returns predictions [n, ...] from what the calls, each for a batch of one, returned: [n,
        1, ...].

        Raises:
            ValueError: an output of the model has no axis of records.
        """
        y_pred, masks = tf.nest.map_structure(_of_batch, outputs)
        remaining = iter(masks)
        for leaf, masked in zip(tf.nest.flatten(y_pred), self._masked, strict=True):
            if masked:
                attach_mask(leaf, next(remaining))
        return y_pred

    @property
    def _moments(self) -> tuple[batch_statistics.BatchMoments, ...]:
        return self._model.optimizer.batch_moments

    @property
    def is_weighed(self) -> bool:
        """Whether the query takes the weight of a record, and bounds it, in place of the loss."""
        return self._model.optimizer.query.takes_weights

    @property
    def has_penalty(self) -> bool:
        """Whether a trainable weight has a regularizer."""
        return any(v.regularizer is not None for v in self._model.trainable_variables)

    def penalty(self) -> tf.Tensor:
        """Returns the sum of the weight regularizers."""
        variables = self._model.trainable_variables
        return tf.add_n([v.regularizer(v.value) for v in variables if v.regularizer is not None])


def _of_batch(stacked: tf.Tensor) -> tf.Tensor:
    if stacked.shape.rank == 1:
        raise ValueError(
            "An output of the model has no axis of records: of a batch nobody could tell whose it "
            "is. Return a number for each record, [records], or call add_loss."
        )
    return tf.squeeze(stacked, 1)
