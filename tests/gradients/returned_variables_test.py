"""Layers that return a variable as it is: it is read as what gradients are looked for at."""

import keras
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    assert_sums_agree,
    by_engine,
    explicit_sum,
    head,
    normal,
    problem,
    targets,
)
from tfdp.gradients.record_wise_operations import MixesError
from tfdp.gradients.region import Region

L, K = keras.layers, keras.ops


class Returns(L.Layer):
    """Returns its weight, alone or beside what it makes of it."""

    def __init__(self, code):
        super().__init__()
        self.code = code

    def build(self, shape):
        self.gain = self.add_weight(shape=(1, 4), initializer="uniform", name="gain")

    def call(self, inputs):
        return self.code(self, inputs)


class Around(L.Layer):
    """A block that calls one."""

    def __init__(self, code):
        super().__init__()
        self.inner, self.dense = Returns(code), L.Dense(4)

    def call(self, inputs):
        return self.dense(inputs) * tf.nest.flatten(self.inner(inputs))[-1]


def alone(layer, x):
    return layer.gain


def beside(layer, x):
    return x * layer.gain, layer.gain


def beside_again(layer, x):
    return {"again": layer.gain, "gain": layer.gain, "x": x * layer.gain}


def model_with(layer):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    h = L.Dense(4)(inputs)
    found = tf.nest.flatten(layer(h))
    return keras.Model(inputs, head(h + K.sin(3 * found[-1]) + K.exp(found[0])))


@pytest.fixture(params=["blocks", "by_record"])
def no_blocks(request, monkeypatch):
    """With code that is looked at, and with code that is run record by record."""
    if request.param == "by_record":

        def refuse(*args):
            raise MixesError("not in this test")

        monkeypatch.setattr(Region, "finish", refuse)


@pytest.mark.parametrize("engine", ["bookkeeping", "vectorized", "loop"])
@pytest.mark.parametrize("code", [alone, beside, beside_again])
@pytest.mark.parametrize("kind", [Returns, Around])
def test_gradients_of_weights_that_are_returned(kind, code, engine, no_blocks):
    loss, variables, examples = problem(model_with(kind(code)), normal(4))
    actual = by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), engine)
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))


@pytest.mark.parametrize("engine", ["bookkeeping", "vectorized", "loop"])
def test_what_a_model_returns(engine, no_blocks):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    first, gain = Returns(beside)(L.Dense(4)(inputs))
    model = keras.Model(inputs, [first, gain])

    def squares(y, outputs):
        return tf.reduce_sum(tf.square(outputs[0] + outputs[1] - y[:, 1:]) * y[:, :1])

    loss, variables = tfdp.gradients.ModelLoss(model, squares), model.trainable_variables
    examples = tf.constant(normal(4)), tf.constant(targets(4))
    actual = by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), engine)
    assert_sums_agree(actual, explicit_sum(loss, variables, examples, 0.3))
