"""Small problems that the Keras tests share, and the step that they should take, by hand."""

import keras
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.keras import small_samples
from tfdp.sampling import FullBatch

L = keras.layers
CLIP = 1.0
NUM_EXAMPLES = 12

LOGITS_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data(num_examples=NUM_EXAMPLES, seed=0):
    """Returns x [n, 4] and labels 0 or 1, of examples that differ much in size."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_examples, 4)).astype("float32")
    x[::2] *= 0.02
    return x, (x[:, 0] > 0).astype("int32")


X, Y = data()
N = len(X)


def examples():
    """Returns (x, one-hot y) as tensors; not at import, which must leave the devices alone."""
    return tf.constant(X), tf.one_hot(Y, 2)


def matrix(value=0.0):
    """Returns the weights of a linear model without Keras."""
    return tf.Variable(tf.fill([4, 2], value))


def squared_error(variable):
    """Returns a loss function for `private_gradients` over `examples()`."""
    return lambda example: tf.reduce_mean((example[0] @ variable - example[1]) ** 2)


def crossentropy(model, i, **kwargs):
    """The loss of example i, without Keras' loss machinery."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        Y[i : i + 1], model(X[i : i + 1], **kwargs)
    )


def fit_step(model, x=X, y=Y, sampling=None, **kwargs):
    """One step on the whole of the data."""
    return model.fit(x, y, sampling=sampling or FullBatch(), verbose=0, **kwargs)


def dense(**kwargs):
    """Returns a plain Sequential model with two logits; the same weights each time."""
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((4,)),
            L.Dense(3, activation="tanh", name="first", **kwargs),
            L.Dense(2, name="second"),
        ]
    )


def linear():
    """Returns the smallest model: one matrix."""
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), L.Dense(2, use_bias=False)])


def query(stddev=0.0, clip=CLIP, denominator=10):
    return tfdp.GaussianAverageQuery(clip, stddev=stddev, denominator=denominator)


def dp(inner=None, stddev=0.0, **kwargs):
    """Returns a DPOptimizer, around SGD(0.5) by default."""
    inner = keras.optimizers.SGD(0.5) if inner is None else inner
    return tfdp.keras.DPOptimizer(inner, query(stddev), **kwargs)


def private(model=None, optimizer=None, loss=LOGITS_LOSS, **kwargs):
    """Returns a compiled private model, without noise by default."""
    model = tfdp.keras.make_private(dense() if model is None else model)
    model.compile(dp() if optimizer is None else optimizer, loss=loss, **kwargs)
    return model


def weights(model):
    return [v.numpy().copy() for v in model.trainable_variables]


def all_finite(model):
    return all(np.isfinite(w).all() for w in weights(model))


def events(model):
    """Returns the ledger's events, repetitions written out."""
    return [entry.event for entry in model.ledger for _ in range(entry.count)]


def gradients_by_hand(variables, record_losses, clip=CLIP):
    """Returns (sum of clipped gradients, norms before) of losses, each a function of nothing."""
    total, norms = [np.zeros(v.shape) for v in variables], []
    for record_loss in record_losses:
        with tf.GradientTape() as tape:
            loss = record_loss()
        gradients = [np.float64(g) for g in tape.gradient(loss, [v.value for v in variables])]
        norms.append(np.sqrt(sum(np.sum(g**2) for g in gradients)))
        factor = clip / max(norms[-1], clip)
        total = [t + factor * g for t, g in zip(total, gradients, strict=True)]
    return total, norms


def step_by_hand(model, record_losses, penalty=None, clip=CLIP, denominator=10, learning_rate=0.5):
    """Returns the weights after one step of SGD on the clipped average, and the norms."""
    variables = model.trainable_variables
    total, norms = gradients_by_hand(variables, record_losses, clip)
    updates = [t / denominator for t in total]
    if penalty is not None:
        with tf.GradientTape() as tape:
            loss = penalty()
        extra = tape.gradient(loss, [v.value for v in variables])
        updates = [u if e is None else u + e for u, e in zip(updates, extra, strict=True)]
    return [w - learning_rate * u for w, u in zip(weights(model), updates, strict=True)], norms


def assert_weights(model, expected, tolerance=1e-6):
    for actual, wanted in zip(weights(model), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance)


class Moves(keras.callbacks.Callback):
    """Notes how far every step of `fit` moves a model of one weight.

    Args:
        do: What is called with the model after the second step.
    """

    def __init__(self, do):
        super().__init__()
        self.do, self.moves = do, []

    def on_train_batch_begin(self, batch, logs=None):
        self.before = weights(self.model)[0]

    def on_train_batch_end(self, batch, logs=None):
        self.moves.append((self.before - weights(self.model)[0]).item())
        if batch == 1:
            self.do(self.model)


def counts_of_calls(monkeypatch):
    """Returns a list that gets the number of steps of each call, which time does not end."""
    counts, run = [], small_samples.StepLoop.run

    def noted(self, traced, draw, count):
        counts.append(count)
        return run(self, traced, draw, count)

    monkeypatch.setattr(small_samples, "_SECONDS_OF_CALL", 1e6)
    monkeypatch.setattr(small_samples.StepLoop, "run", noted)
    return counts
