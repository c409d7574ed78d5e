"""Without clipping and noise, a private step is Keras' own step, whatever the loss."""

import keras
import numpy as np
import pytest

import tfdp

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
