"""Epochs of plain SGD on a participant's data, as one compiled function for all participants."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.events.arguments import positive_integer, real_number
from tfdp.gradients.rewriting import with_checks
from tfdp.noise import HostGenerator, host_generator


class LocalSGD:
    """Trains a Keras model by SGD on vectors of its parameters, from any data of one shape.

        w := w - learning_rate * gradient of the mean loss of a batch

    The model serves as a description: its own variables are read once, by `parameters`, and never
    assigned. Every epoch goes through the examples in a new random order, in whole batches; up to
    batch_size - 1 of them are left out of it.

    Guarantees:
        An epoch does not end with an error, whatever the numbers of the examples are: it would
        tell of them, and TensorFlow writes labels into its text. A label or an id that does not
        exist makes the parameters NaN, in whose place a `Participant` puts those it had before.

    Args:
        model: Built. All of its state is in trainable variables: no batch normalization, no seeds.
        loss: Of (y, predictions), a Keras loss, or a function that returns one of each example.
        learning_rate: Positive.
        batch_size: Positive; all examples are one batch where there are fewer.
        generator: Draws orders; by default keyed by the operating system.
        jit_compile: Whether XLA compiles an epoch.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range, or the model has other state.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Callable[[Any, Any], Any],
        learning_rate: float,
        batch_size: int = 32,
        *,
        generator: HostGenerator | np.random.Generator | None = None,
        jit_compile: bool = False,
    ):
        if model.non_trainable_variables:
            names = [variable.path for variable in model.non_trainable_variables]
            raise ValueError(
                "The model must have no state besides trainable variables, because participants "
                f"share nothing else. Received a model with {names}."
            )
        self._model, self._loss = model, loss
        self._rate = real_number("learning_rate", learning_rate, minimum=0, inclusive=False)
        self._batch_size = positive_integer("batch_size", batch_size)
        self._generator = host_generator(generator)
        self._shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        self._epoch = tf.function(self._steps, jit_compile=jit_compile, reduce_retracing=True)
        self._predict = tf.function(self._predictions, reduce_retracing=True)

    def parameters(self) -> np.ndarray:
        """Returns the model's variables as one vector, float32 [n]."""
        values = [np.ravel(variable.numpy()) for variable in self._model.trainable_variables]
        return np.concatenate(values).astype(np.float32)

    def on(
        self, x: np.ndarray, y: np.ndarray, batches: int | None = None
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Returns a function from parameters to those after one epoch on (x, y), or a part of it.

        Args:
            x: Examples, [n, ...].
            y: Of each, [n, ...].
            batches: Of a new random order each time, where it is not all of them.

        Raises:
            ValueError: there are fewer batches, or no examples, or not as many in x as in y.
        """
        x, y = tf.constant(x), tf.constant(y)
        if not (x.shape.rank and y.shape.rank and 0 < len(x) == len(y)):
            raise ValueError(
                "x and y must hold equally many examples, at least one. Received: x of shape "
                f"{x.shape} and y of shape {y.shape}."
            )
        size = len(x)
        batch_size = min(self._batch_size, size)
        number = size // batch_size
        if batches is not None and positive_integer("batches", batches) > number:
            raise ValueError(f"There are {number} batches in an epoch. Received: {batches=}.")
        number = batches or number

        def train(parameters: np.ndarray) -> np.ndarray:
            order = self._generator.permutation(size)[: number * batch_size]
            batches = tf.constant(order.reshape(-1, batch_size), tf.int32)
            return self._epoch(tf.constant(parameters, tf.float32), x, y, batches).numpy()

        return train

    def accuracy(self, parameters: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
        """Returns the fraction of examples whose largest output is at their label."""
        outputs = self._predict(tf.constant(parameters, tf.float32), tf.constant(x))
        return float(np.mean(np.argmax(outputs.numpy(), axis=-1) == np.ravel(y)))

    def _unflattened(self, parameters: tf.Tensor) -> list[tf.Tensor]:
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = tf.split(parameters, sizes)
        return [tf.reshape(part, s) for part, s in zip(parts, self._shapes, strict=True)]

    def _predictions(self, parameters: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return self._model.stateless_call(self._unflattened(parameters), [], x, training=False)[0]

    def _steps(
        self, parameters: tf.Tensor, x: tf.Tensor, y: tf.Tensor, batches: tf.Tensor
    ) -> tf.Tensor:
        variables = self._unflattened(parameters)
        specs = [tf.TensorSpec([batches.shape[1], *t.shape[1:]], t.dtype) for t in (x, y)]
        specs += [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        gradients_of = with_checks(tf.function(self._gradients), specs)
        for i in tf.range(tf.shape(batches)[0]):
            records = tf.gather(x, batches[i]), tf.gather(y, batches[i])
            gradients = gradients_of([*records, *variables])
            variables = [v - self._rate * g for v, g in zip(variables, gradients, strict=True)]
        return tf.concat([tf.reshape(variable, [-1]) for variable in variables], 0)

    def _gradients(self, leaves: list[tf.Tensor]) -> list[tf.Tensor]:
        x, y, *variables = leaves
        with tf.GradientTape() as tape:
            tape.watch(variables)
            outputs = self._model.stateless_call(variables, [], x, training=True)[0]
            loss = tf.reduce_mean(self._loss(y, outputs))
        found = tape.gradient(loss, variables, unconnected_gradients="zero")
        return [tf.convert_to_tensor(gradient) for gradient in found]
