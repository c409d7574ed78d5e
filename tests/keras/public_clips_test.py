"""tfdp.keras.clips_from_public_data: quantiles of gradient norms, of data that are not private."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.keras import clips_from_public_data


def _model(regularizer=None):
    return keras.Sequential(
        [
            keras.Input([3]),
            keras.layers.Dense(2, kernel_regularizer=regularizer),
            keras.layers.Dense(1),
        ]
    )


X = np.random.default_rng(0).normal(size=(9, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(9, 1)).astype("float32")


def _norms(model):
    """Oracle: the norm of every variable's gradient of (prediction - y)^2, record by record."""
    norms = []
    for x, y in zip(X, Y, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x[None]) - y) ** 2)
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        norms.append([np.linalg.norm(g) for g in found])
    return np.array(norms)


@pytest.mark.parametrize("regularizer", [None, keras.regularizers.L2(10.0)], ids=["plain", "l2"])
@pytest.mark.parametrize("quantile", [0.5, 0.9, 1.0])
def test_quantiles_of_gradient_norms(regularizer, quantile):
    model = _model(regularizer)
    model.compile(loss="mse")
    norms = _norms(model)
    clips = clips_from_public_data(model, X, Y, quantile, group_by="variable")
    np.testing.assert_allclose(clips, np.quantile(norms, quantile, axis=0), rtol=1e-4)
    clips = clips_from_public_data(model, X, Y, quantile)
    layers = np.hypot(norms[:, ::2], norms[:, 1::2])  # Kernel and bias, kernel and bias.
    np.testing.assert_allclose(clips, np.quantile(layers, quantile, axis=0), rtol=1e-4)


def test_clips_are_what_per_layer_queries_take():
    model = _model()
    model.compile(loss="mse")
    for group_by, groups in [("layer", 2), ("variable", 4)]:
        clips = clips_from_public_data(model, X, Y, group_by=group_by)
        query = tfdp.query.proportional_noise(model, clips, 1.0, 8.0, group_by=group_by)
        assert len(query.derive_event(query.initial_global_state()).events) == groups


def test_leaves_the_model_as_it_was():
    model = _model()
    model.compile(loss="mse")
    before = [np.array(w) for w in model.weights]
    clips_from_public_data(model, X, Y)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_needs_variables_a_loss_and_records():
    with pytest.raises(ValueError, match="no variables yet"):
        clips_from_public_data(keras.Sequential([keras.layers.Dense(1)]), X, Y)
    with pytest.raises(ValueError, match="Compile it first"):
        clips_from_public_data(_model(), X, Y)
    model = _model()
    model.compile(loss="mse")
    with pytest.raises(ValueError, match="at least one record"):
        clips_from_public_data(model, X[:0], Y[:0])
    with pytest.raises(ValueError, match="quantile must be"):
        clips_from_public_data(model, X, Y, 0.0)


def test_replicas_are_refused():
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = _model()
        model.compile(loss="mse")
        with pytest.raises(ValueError, match=r"after the `with strategy.scope\(\):` block"):
            clips_from_public_data(model, X, Y)
    assert len(clips_from_public_data(model, X, Y)) == 2
