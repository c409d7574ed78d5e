"""Which activation functions are known to treat records separately."""

import functools

import keras
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    assert_engines_agree,
    assert_layer_is_exact,
    by_engine,
    model_of,
    normal,
    problem,
)
from tfdp.gradients import UnsupportedModelError, explain
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


def own_swish(x):
    return x * tf.sigmoid(1.7 * x)


def minus_mean(x):
    return x - tf.reduce_mean(x, axis=0, keepdims=True) / 2


LAYERS = {
    "conv": (lambda f: L.Conv1D(3, 2, activation=f, name="layer"), (5, 4)),
    "dense": (lambda f: L.Dense(3, activation=f, name="layer"), (5, 4)),
    "depthwise": (lambda f: L.DepthwiseConv1D(2, activation=f, name="layer"), (5, 4)),
    "einsum": (lambda f: L.EinsumDense("abc,cd->abd", (5, 3), activation=f, name="layer"), (5, 4)),
}


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_layer_with_a_function_of_ones_own_has_its_rule(layer):
    make, shape = LAYERS[layer]
    lines = explain(model_of(lambda: make(own_swish), shape))
    assert "layer: " in lines and "record by record" not in lines
    assert_engines_agree(*problem(model_of(lambda: make(own_swish), shape), normal(*shape)))


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_function_that_mixes_records_runs_record_by_record_alone(layer):
    make, shape = LAYERS[layer]
    lines = explain(model_of(lambda: make(minus_mean), shape)).split("\n")
    assert any(line.startswith("layer: ") and line.endswith("Rule") for line in lines)
    # `mixing_test.py` compares the gradients.
    assert any(line.startswith("layer/activation: record by record: Mean (") for line in lines)


def test_frozen_layer_with_a_function_of_ones_own():
    make = lambda f: L.Dense(3, activation=f, trainable=False, name="layer")  # noqa: E731
    for function in (own_swish, minus_mean):
        model = model_of(lambda function=function: make(function), (5, 4))
        assert_engines_agree(*problem(model, normal(5, 4)))


def test_function_that_changes_its_mind_is_refused():
    calls = []

    def function(x):
        calls.append(x)
        return minus_mean(x) if len(calls) == 3 else own_swish(x)

    model = model_of(lambda: L.Dense(3, activation=function, name="layer"), (4,))
    calls.clear()
    with pytest.raises(UnsupportedModelError, match="does something else each time"):
        explain(model)


def test_function_that_uses_a_weight_is_refused():
    layer = L.Dense(3, name="layer")
    layer.activation = lambda x: x * tf.reduce_sum(tf.convert_to_tensor(layer.kernel))
    loss, variables, examples = problem(model_of(lambda: layer, (4,)), normal(4))
    with pytest.raises(UnsupportedModelError, match="outside of the layers"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
