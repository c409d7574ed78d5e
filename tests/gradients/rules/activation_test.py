"""Which activation functions are known to treat records separately."""

import functools

import keras
import pytest
import tensorflow as tf

from tests.gradients.problems import assert_layer_is_exact
from tfdp.gradients.rules import activation

L = keras.layers


@pytest.mark.parametrize(
    "function",
    [
        keras.activations.relu,
        keras.ops.tanh,
        tf.nn.gelu,
        tf.math.sigmoid,
        keras.activations.softmax,
    ],
)
def test_own_functions_of_keras_and_tensorflow_are_known(function):
    assert activation.is_known(function)


def test_arguments_may_not_say_along_which_axis():
    known = functools.partial(keras.activations.relu, negative_slope=0.1)
    assert activation.is_known(known)
    # Along axis 0 a softmax divides by a sum over records.
    assert not activation.is_known(functools.partial(keras.activations.softmax, axis=0))
    # The first argument is the input, and any other by place may be an axis.
    assert not activation.is_known(functools.partial(keras.activations.softmax, 0))


def test_code_of_ones_own_is_not_known():
    assert not activation.is_known(lambda x: x)
    assert not activation.is_known(keras.ops.mean)
    assert not activation.is_known(functools.partial(lambda x, a: x, a=1))


def test_layer_as_an_activation():
    assert_layer_is_exact(lambda: L.Dense(3, activation=L.PReLU()), (4,))
