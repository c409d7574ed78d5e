"""A loss in two stages, by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss


def test_stages_by_hand():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[3.0]])])
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs - y))
    outputs = loss.forward((tf.constant([[2.0], [4.0]]), None), None)
    assert outputs.numpy().tolist() == [[6.0], [12.0]]
    value, aux = loss.loss((None, tf.constant([[1.0]])), outputs[:1], None)
    assert (float(value), aux.numpy().tolist()) == (5.0, [[6.0]])
    assert loss.model is model


def test_only_models_have_it():
    with pytest.raises(TypeError, match="model must be a keras.Model"):
        ModelLoss(keras.layers.Dense(1), lambda y, outputs: 0.0)


@pytest.mark.parametrize("name", ["mse", "MeanSquaredError", "sparse_categorical_crossentropy"])
def test_loss_by_its_name_is_that_of_compile(name):
    layers = [keras.Input((3, 2)), keras.layers.Masking(), keras.layers.Dense(4, "softmax")]
    model = keras.Sequential(layers)
    x = np.random.default_rng(0).normal(size=(5, 3, 2)).astype("float32")
    x[0, 2] = 0.0  # A part that the mask leaves out.
    y = np.arange(15).reshape(5, 3) % 4
    y = y if name.startswith("sparse") else np.eye(4, dtype="float32")[y]
    model.compile(loss=name)
    query = tfdp.GaussianSumQuery(l2_norm_clip=1.0, stddev=0.0)
    for engine in ("bookkeeping", "vectorized", "loop"):
        found = tfdp.clipped_gradient_sum(
            ModelLoss(model, name), model.trainable_variables, (x, y), query, engine=engine
        )
        expected = [model.evaluate(x[i : i + 1], y[i : i + 1], verbose=0) for i in range(5)]
        np.testing.assert_allclose(found.losses, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        ("nothing", ValueError, "nothing"),
        (None, TypeError, "loss must be a function of"),
        ({"a": "mse"}, TypeError, "or the name of a loss of Keras. Received: loss={'a': 'mse'}"),
    ],
)
def test_loss_that_is_none_is_refused_before_a_step(loss, error, message):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(error, match=message):
        ModelLoss(model, loss)
