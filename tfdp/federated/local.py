"""What a client does in a round: some epochs of SGD on its own data, from the server's weights."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp.events.arguments import positive_integer, real_number
from tfdp.gradients.mapping import map_records
from tfdp.gradients.record_scope import RecordScope, Seeds, draw_seeds


@dataclasses.dataclass(frozen=True)
class LocalSGD:
    """Plain SGD on a client's own examples.

        w <- w - learning_rate (gradient + proximal (w - w_0) + c - c_i)

    over batches of a new order of the examples in each epoch, the last of them smaller. w_0 are the
    server's weights; c and c_i the server's and the client's control variates, with SCAFFOLD.

    Args:
        epochs: Passes over the client's examples.
        batch_size: Examples in a batch.
        learning_rate: Of the client; positive.
        proximal: mu of FedProx (Li et al. 2020, arXiv:1812.06127), which holds the client near w_0.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range.

    References:
        McMahan et al. 2017, arXiv:1602.05629, algorithm 1 (ClientUpdate); Karimireddy et al. 2020,
        arXiv:1910.06378, algorithm 1, option II.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    proximal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            object.__setattr__(self, name, positive_integer(name, getattr(self, name)))
        rate = real_number("learning_rate", self.learning_rate, minimum=0, inclusive=False)
        object.__setattr__(self, "learning_rate", rate)
        proximal = real_number("proximal", self.proximal, minimum=0, inclusive=True)
        object.__setattr__(self, "proximal", proximal)

    def steps(self, examples: int) -> int:
        """Returns the number of steps on so many examples."""
        return self.epochs * -(-examples // self.batch_size)

    def batches(self, examples: int, generator: Any) -> np.ndarray:
        """Returns int32 [steps, batch_size]: indices of examples; -1 fills the last batch of an
        epoch up.

        Args:
            examples: How many there are.
            generator: Draws the orders; a `tfdp.noise.HostGenerator`, or one of NumPy.
        """
        each = -(-examples // self.batch_size)
        result = np.full([self.epochs, each * self.batch_size], -1, np.int32)
        for epoch in range(self.epochs):
            result[epoch, :examples] = generator.permutation(examples)
        return result.reshape(-1, self.batch_size)


# Keras' reductions that divide by how many examples a batch has, those that only fill it up
# included; one that divides by the sum of their weights; and one that does not divide.
_OVER_ROWS, _OVER_WEIGHTS, _SUM = ("sum_over_batch_size", "mean"), "mean_with_sample_weight", "sum"


class Clients(NamedTuple):
    """The data of some clients, stacked; what one has less than another is filled with zeros.

    Attributes:
        x: [clients, rows, ...].
        y: [clients, rows, ...].
        order: int32 [clients, steps, batch_size]: which rows are in which batch; -1 is none.
    """

    x: Any
    y: Any
    order: Any


class LocalTraining:
    """Local SGD of several clients at once, each from the same weights on its own way.

    The weights of the clients are stacked, and every operation is done for all of them
    (`tf.vectorized_map`). A model that TensorFlow cannot vectorize is trained client by client.

    Guarantees:
        What a client's training adds, finite or not, follows from its own data and random numbers:
        a client that has finished its steps stays where it is while others go on.

    Edge cases:
        Constraints of weights are applied after every step, as in Keras. Dropout draws for every
        client and step from fresh secret bits. Where a layer masks time
        steps, Keras' mean is over all rows of a batch, those that fill it up included.

    Args:
        model: A built model that is compiled with a loss. Its own weights stay as they are.
        sgd: What each client does.

    Raises:
        TypeError: `sgd` is no `LocalSGD`.
        ValueError: the model is not built, or has no loss, or one without reduction.
    """

    def __init__(self, model: keras.Model, sgd: LocalSGD):
        if not isinstance(sgd, LocalSGD):
            raise TypeError(f"sgd must be a tfdp.federated.LocalSGD. Received: sgd={sgd!r}.")
        if not model.built or not getattr(model, "compiled", False):
            raise ValueError(
                "The model must be built and compiled with a loss, which clients minimise: "
                "model.compile(..., loss=...)."
            )
        _divides_by_rows(model)
        self.model, self.sgd = model, sgd
        self._is_ready = False
        self._run = tf.function(self._trained, autograph=False)

    def updates(
        self,
        weights: Sequence[Any],
        clients: Clients,
        corrections: Sequence[Any] | None = None,
    ) -> list[np.ndarray]:
        """Returns what training adds to the weights, with an axis of clients in front.

        Args:
            weights: Of the server, in the order of `model.trainable_variables`.
            clients: Whose data.
            corrections: c - c_i for every client, [clients, ...], with SCAFFOLD.
        """
        x, y = tf.convert_to_tensor(clients.x), tf.convert_to_tensor(clients.y)
        self._create_metrics(x, y)
        order = np.asarray(clients.order, np.int32)
        steps = int(np.max(np.sum(np.any(order >= 0, axis=2), axis=1), initial=0))
        start = [tf.convert_to_tensor(w) for w in weights]
        corrections = [] if corrections is None else [tf.convert_to_tensor(c) for c in corrections]
        seeds = draw_seeds(len(order))
        ends = self._run(start, x, y, tf.constant(order), tf.constant(steps), seeds, corrections)
        return [np.asarray(end - w) for end, w in zip(ends, start, strict=True)]

    def _create_metrics(self, x: tf.Tensor, y: tf.Tensor) -> None:
        """Creates variables of the loss, which graphs cannot."""
        if not self._is_ready:
            y_pred = self.model(tf.zeros_like(x[0, :1]))
            self.model.compute_loss(x=x[0, :1], y=tf.zeros_like(y[0, :1]), y_pred=y_pred)
            self._is_ready = True

    def _trained(self, start, x, y, order, steps, seeds, corrections):
        rate, proximal = self.sgd.learning_rate, self.sgd.proximal
        number = order.shape[0]
        stacked = [tf.repeat(w[None], number, axis=0) for w in start]
        size = self.sgd.batch_size
        shapes = [x[:, :1], y[:, :1]]
        batch = [tf.repeat(t, size, axis=1) for t in shapes]
        constraints = [v.constraint for v in self.model.trainable_variables]
        mask = tf.ones([number, size], tf.bool)
        gradients, _ = map_records(self._gradients, [*batch, mask, seeds, *stacked], number)

        def body(step, *weights):
            index = tf.gather(order, step, axis=1)
            mask = index >= 0
            # What fills a batch up is one of its own rows, whose loss is as finite as the batch's.
            own = tf.maximum(tf.reduce_max(index, axis=1, keepdims=True), 0)
            rows = tf.where(mask, index, own)
            batch = [tf.gather(t, rows, batch_dims=1) for t in (x, y)]
            numbers = seeds + tf.stack([tf.cast(step, tf.int64), 0])
            found = gradients(*batch, mask, numbers, *weights)
            takes = tf.reduce_any(mask, axis=1)
            new = []
            for i, (weight, gradient) in enumerate(zip(weights, found, strict=True)):
                if proximal:
                    gradient += tf.cast(proximal, weight.dtype) * (weight - start[i])
                if corrections:
                    gradient += corrections[i]
                moved = weight - tf.cast(rate, weight.dtype) * gradient
                if constraints[i] is not None:
                    moved = tf.map_fn(constraints[i], moved)
                # Chosen, not multiplied: what a client that has finished would compute may be NaN.
                new.append(tf.where(_like(takes, weight), moved, weight))
            return step + 1, *new

        _, *ends = tf.while_loop(
            lambda step, *_: step < steps, body, (tf.constant(0), *stacked), parallel_iterations=1
        )
        return ends

    def _gradients(self, leaves: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradient of one client's batch at its own weights; all [1, ...]."""
        x, y, mask, seed, *weights = (tf.squeeze(leaf, 0) for leaf in leaves)
        variables = self.model.trainable_variables
        present = sample_weight = tf.cast(mask, tf.float32)
        if _divides_by_rows(self.model):
            # The loss is a mean over the batch, of which some rows only fill it up.
            rows = tf.cast(tf.shape(mask)[0], tf.float32)
            sample_weight *= rows / tf.maximum(tf.reduce_sum(present), 1.0)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            pairs = list(zip(variables, weights, strict=True))
            with RecordScope(Seeds(seed), pairs, self.model.metrics_variables):
                y_pred = self.model(x, training=True)
                loss = self.model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        found = tape.gradient(loss, weights, unconnected_gradients="zero")
        return [tf.convert_to_tensor(gradient) for gradient in found]


def _divides_by_rows(model: keras.Model) -> bool:
    """Returns whether the model's loss divides by the number of rows of a batch.

    Raises:
        ValueError: it has no reduction, or its parts have reductions that differ in this.
    """
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    # Of names and functions Keras makes losses with the first reduction.
    reductions = {getattr(loss, "reduction", _OVER_ROWS[0]) for loss in losses}
    if reductions <= {*_OVER_ROWS, _OVER_WEIGHTS}:
        return reductions != {_OVER_WEIGHTS}
    if reductions <= {_SUM, _OVER_WEIGHTS}:
        return False
    raise ValueError(
        "The last batch of a client is filled up, and what the loss then is follows from its "
        "reduction. Give all losses of the model the same, one of 'sum_over_batch_size', "
        f"'mean_with_sample_weight' and 'sum'. Received: {sorted(map(str, reductions))}."
    )


def _like(values: tf.Tensor, stacked: tf.Tensor) -> tf.Tensor:
    return tf.reshape(values, [-1] + [1] * (stacked.shape.rank - 1))
