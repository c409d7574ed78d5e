"""A loss in two stages, by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

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
