"""Gradients of all examples at once, one by one in order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import assert_sums_agree, explicit_sum
from tfdp.gradients import ModelLoss
from tfdp.gradients.engines.vectorized import vectorized_gradients


def test_every_example_has_its_own_gradient():
    def gradient(leaves):
        (x,) = leaves
        return tf.reduce_sum(x), {"twice": 2.0 * x[0]}, [3.0 * x[0], tf.reduce_sum(x)[None]]

    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    losses, aux, forms = vectorized_gradients(gradient, [x], 2)(x)
    np.testing.assert_allclose(losses, [3.0, 7.0])
    np.testing.assert_allclose(aux["twice"], [[2.0, 4.0], [6.0, 8.0]])
    np.testing.assert_allclose(forms[0].explicit(), [[3.0, 6.0], [9.0, 12.0]])
    np.testing.assert_allclose(forms[1].explicit(), [[3.0], [7.0]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_in_half_precision_are_clipped_in_single(dtype):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype=dtype)])
    loss = ModelLoss(model, lambda y, z: tf.reduce_sum(tf.square(tf.cast(z, tf.float32) - y)))
    data = tf.constant([[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]]), tf.constant([[1.0, 0.0], [0.0, 9.0]])
    query = tfdp.GaussianSumQuery(0.5, 1.0)
    expected = explicit_sum(loss, model.trainable_variables, data, 0.5)
    # The other engine rounds gradients elsewhere, in half precision.
    for engine, tolerance in (("vectorized", 1e-5), ("bookkeeping", 1e-2)):
        total = tfdp.clipped_gradient_sum(
            loss, model.trainable_variables, data, query, engine=engine
        ).sample_state
        assert [leaf.dtype for leaf in total] == [tf.float32] * 2
        assert_sums_agree([leaf.numpy() for leaf in total], expected, tolerance)


@pytest.mark.parametrize("name", ["Dense", "Conv1D", "LSTM"])
def test_records_of_open_length(name):
    layers = keras.layers
    keras.utils.set_random_seed(0)
    layer = {
        "Dense": layers.Dense(4),
        "Conv1D": layers.Conv1D(4, 2),
        "LSTM": layers.LSTM(4, return_sequences=True),
    }[name]
    pooled = layers.GlobalAveragePooling1D()
    model = keras.Sequential([keras.Input((None, 3)), layer, pooled, layers.Dense(2)])
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(tf.square(outputs) * y))
    rng = np.random.default_rng(0)
    examples = rng.normal(size=(4, 5, 3)).astype("float32"), np.float32([[1], [9], [2], [0]])
    query = tfdp.GaussianSumQuery(0.3, 1.0)

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, 1])],
    )
    def total(x, y):
        return tfdp.clipped_gradient_sum(
            loss, model.trainable_variables, (x, y), query, engine="vectorized"
        ).sample_state

    actual = [np.asarray(leaf, np.float64) for leaf in total(*examples)]
    examples = tuple(map(tf.constant, examples))
    assert_sums_agree(actual, explicit_sum(loss, model.trainable_variables, examples, 0.3))
