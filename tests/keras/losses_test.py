"""Without clipping and noise, a private step is Keras' own step, whatever the loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import UnsupportedModelError
from tfdp.gradients.engines import bookkeeping

N = 8
LOSSES = [
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalHinge",
    "CosineSimilarity",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
]


def data(loss):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, N)
    y = labels if loss == "SparseCategoricalCrossentropy" else np.eye(3, dtype="float32")[labels]
    return rng.normal(size=(N, 4)).astype("float32"), y


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])


@pytest.mark.parametrize("name", LOSSES)
def test_step_without_clipping_and_noise_is_the_step_of_keras(name):
    x, y = data(name)
    plain = network()
    plain.compile(keras.optimizers.SGD(0.1), getattr(keras.losses, name)())
    plain.fit(x, y, batch_size=N, shuffle=False, verbose=0)

    private = tfdp.keras.make_private(network())
    query = tfdp.GaussianAverageQuery(l2_norm_clip=1e9, stddev=0.0, denominator=N)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query)
    private.compile(optimizer, getattr(keras.losses, name)())
    private.fit(x, y, sampling=tfdp.sampling.FullBatch(), verbose=0)

    start = network().get_weights()
    for before, expected, got in zip(
        start, plain.get_weights(), private.get_weights(), strict=True
    ):
        assert np.abs(expected - before).max() > 0
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


class OwnLoss(tfdp.keras.DPModel):
    """Halves the loss that it was compiled with."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def call(self, x):
        return self.inner(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) / 2


def two_outputs():
    model = network()
    second = keras.layers.Dense(3, activation="softmax")(model.inputs[0])
    return keras.Model(model.inputs[0], [model.outputs[0], second])


# How a model was compiled, and whether Keras is called on single records.
COMPILED = {
    "a name": (network, {"loss": "categorical_crossentropy"}, False),
    "a function": (network, {"loss": keras.losses.categorical_crossentropy}, False),
    "a list": (network, {"loss": ["categorical_crossentropy"]}, False),
    "with metrics": (network, {"loss": "mse", "metrics": ["accuracy"]}, False),
    "a function of one's own": (network, {"loss": lambda y, p: (y - p)[:, 0] ** 2}, True),
    "a weight": (network, {"loss": ["mse"], "loss_weights": [3.0]}, True),
    "two outputs": (two_outputs, {"loss": ["mse", "mae"], "loss_weights": [2.0, 0.5]}, True),
    "a loss that looks at all targets": (network, {"loss": "hinge"}, True),
    "compute_loss": (OwnLoss, {"loss": "mse"}, True),
}


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("weighed", [False, True])
def test_only_a_loss_of_ones_own_is_called_on_single_records(monkeypatch, name, weighed):
    build, compiled, mapped = COMPILED[name]
    calls, own = [], bookkeeping.map_records
    monkeypatch.setattr(bookkeeping, "map_records", lambda *args: (calls.append(1), own(*args))[1])
    x, y = data("CategoricalCrossentropy")
    y = [y, y] if build is two_outputs else y
    weights = np.linspace(0.5, 2, N) if weighed else None
    weights = [weights, weights] if weighed and build is two_outputs else weights

    plain = build()
    if build is OwnLoss:
        plain(x)
    trained = plain.trainable_variables
    start = [v.numpy() for v in trained]
    with tf.GradientTape() as tape:
        by_record = [
            loss_of_record(plain, compiled, *(part_of(part, i) for part in (x, y, weights)))
            for i in range(N)
        ]
        total = tf.add_n(by_record) / N
    expected = tape.gradient(total, [v.value for v in trained])

    private = tfdp.keras.make_private(plain)
    query = tfdp.GaussianAverageQuery(l2_norm_clip=1e9, stddev=0.0, denominator=N)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, engine="bookkeeping")
    private.compile(optimizer, **compiled)
    logs = private.fit(
        x, y, sample_weight=weights, sampling=tfdp.sampling.FullBatch(), verbose=0
    ).history
    assert bool(calls) == mapped
    assert logs["loss"][0] == pytest.approx(float(total), rel=1e-4)
    for before, gradient, now in zip(start, expected, trained, strict=True):
        np.testing.assert_allclose(before - now, gradient, rtol=1e-4, atol=1e-6)


class OwnLosses(OwnLoss):
    """Adds the size of its weights, as losses of its own."""

    compute_loss = keras.Model.compute_loss

    @property
    def losses(self):
        return [keras.ops.sum(self.inner.layers[0].kernel ** 2)]


def test_losses_that_a_class_has_itself_are_refused_on_the_batch():
    x, y = data("CategoricalCrossentropy")
    private = OwnLosses()
    query = tfdp.GaussianAverageQuery(l2_norm_clip=1e9, stddev=0.0, denominator=N)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, engine="bookkeeping")
    private.compile(optimizer, loss="mse")
    with pytest.raises(UnsupportedModelError, match="used outside of the layers that own them"):
        private.fit(x, y, sampling=tfdp.sampling.FullBatch(), verbose=0)


def test_a_loss_that_a_model_is_given_itself_is_called_on_single_records():
    x, y = data("CategoricalCrossentropy")
    private = tfdp.keras.make_private(network())
    start = private.get_weights()
    query = tfdp.GaussianAverageQuery(l2_norm_clip=1e9, stddev=0.0, denominator=N)
    private.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query), loss="mse")
    own = private.compute_loss
    private.compute_loss = lambda *args, **kwargs: -own(*args, **kwargs)
    private.fit(x, y, sampling=tfdp.sampling.FullBatch(), verbose=0)
    kernel = tf.Variable(start[0])
    with tf.GradientTape() as tape:
        loss = -keras.losses.MeanSquaredError()(y, tf.nn.softmax(x @ kernel + start[1]))
    expected = start[0] - tape.gradient(loss, kernel)
    np.testing.assert_allclose(private.get_weights()[0], expected, rtol=1e-4, atol=1e-6)


def part_of(part, i):
    """Returns a batch of one record."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[i : i + 1], part)


def loss_of_record(model, compiled, x, y, weights):
    """Returns what Keras computes from one record."""
    if not isinstance(model, OwnLoss):
        model.compile(**compiled)
        return model.compute_loss(x, y, model(x), weights)
    loss = keras.losses.MeanSquaredError()
    return loss(y, model(x), weights) / 2
