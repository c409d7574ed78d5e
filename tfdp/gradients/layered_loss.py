"""A loss that goes through the layers of a model."""

import abc
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.usual_losses import RecordLosses, losses_of_records


class UnsupportedModelError(ValueError):
    """The book-keeping engine cannot compute this model's gradients; the message says why."""


class LoopsByRecordError(UnsupportedModelError):
    """XLA would have to compile the loop of a recurrent layer record by record, which it cannot."""


class LayeredLoss(abc.ABC):
    """A `loss_fn` in two stages, of which the first may run on a whole batch.

    The book-keeping engine runs `forward` once on the whole batch, watching the layers of `model`,
    and `loss` record by record. Other engines run both on batches of one.
    """

    @property
    @abc.abstractmethod
    def model(self) -> keras.Layer:
        """The layer whose weights are trained, and whose layers `forward` calls."""

    @abc.abstractmethod
    def forward(self, examples: Any, scope: keras.StatelessScope) -> Any:
        """Returns the model's outputs, a structure of [n, ...], for a batch of any size.

        `scope` is the scope in which it runs: layers' random numbers come from it, and losses that
        they add are collected there. No record's outputs may depend on another
        record, by anything that `forward` does beside calling the model's layers, and layers with
        weights are called on one row for each record, in front.
        """

    @abc.abstractmethod
    def loss(self, example: Any, outputs: Any, scope: keras.StatelessScope) -> Any:
        """Returns (loss, aux) of a batch of one example from the model's outputs for it.

        `scope` is the scope in which it runs, which may be that of `forward`.
        """

    def losses_of_records(
        self, examples: Any, outputs: Any, scope: keras.StatelessScope
    ) -> tuple[RecordLosses, Any] | None:
        """Returns (losses, aux [n, ...]) of a batch, as calls of `loss` for every record would, or
        None where only those tell, as here.

        Asked for where `loss` is tfdp's own, and no layer has added a loss. `scope` is that of
        `forward`.
        """
        return None


class ModelLoss(LayeredLoss):
    """The loss of a model's outputs, for training loops of one's own.

    Examples are pairs (x, y). Aux is the model's output.

    Args:
        model: A Keras model.
        loss: Function of (y, outputs), both of a batch of one example; returns one number. Or the
            name of a loss of Keras, such as "mse", which is then the mean over an example's parts.

    Raises:
        TypeError: the model is no Keras model, or the loss no function.
        ValueError: Keras has no loss of this name.

    Example:
        >>> import tfdp
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> loss = tfdp.gradients.ModelLoss(model, keras.losses.MeanSquaredError())
        >>> query = tfdp.GaussianSumQuery(l2_norm_clip=1.0, stddev=1.0)
        >>> total = tfdp.clipped_gradient_sum(
        ...     loss, model.trainable_variables, (tf.ones([8, 3]), tf.zeros([8, 2])), query
        ... )
        >>> total.losses.shape
        TensorShape([8])
    """

    def __init__(self, model: keras.Model, loss: Callable[[Any, Any], tf.Tensor] | str):
        if not isinstance(model, keras.Model):
            raise TypeError(f"model must be a keras.Model. Received: model={model!r}.")
        if isinstance(loss, str):
            loss = _loss_of_name(loss)
        if not callable(loss):
            raise TypeError(
                "loss must be a function of (y, outputs), or the name of a loss of Keras. "
                f"Received: loss={loss!r}."
            )
        self._model = model
        self._loss = loss

    @property
    def model(self) -> keras.Layer:
        return self._model

    def forward(self, examples: Any, scope: keras.StatelessScope) -> Any:
        return self._model(examples[0], training=True)

    def loss(self, example: Any, outputs: Any, scope: keras.StatelessScope) -> Any:
        return self._loss(example[1], outputs), outputs

    def losses_of_records(
        self, examples: Any, outputs: Any, scope: keras.StatelessScope
    ) -> tuple[RecordLosses, Any] | None:
        found = losses_of_records(self._loss, examples[1], outputs)
        return None if found is None else (found, tf.expand_dims(outputs, 1))


def _loss_of_name(name: str) -> keras.losses.Loss:
    """Returns a loss as `compile` makes it of its name: one number, masks kept."""
    function = keras.losses.get(name)
    return function if isinstance(function, keras.losses.Loss) else _Reduced(function)


class _Reduced(keras.losses.Loss):
    """A function of Keras that gives several numbers, reduced to one."""

    def __init__(self, function: Callable[[Any, Any], Any]):
        super().__init__(name="loss")
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._function(y_true, y_pred)
