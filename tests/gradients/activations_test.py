"""Activation functions of one's own: a layer that has one may not run on a batch."""

import functools

import keras
import pytest
import tensorflow as tf

from tests.gradients.bookkeeping_test import (
    assert_engines_agree,
    model_of,
    normal,
    problem,
)
from tfdp.gradients.rules.rule import LayerRule, RecordWise, rule_for

L = keras.layers


def minus_mean(x):
    """Mixes records: what must never be run on a batch."""
    return x - tf.reduce_mean(x, axis=0, keepdims=True)


# name -> (layer, given an activation; shape of its input)
LAYERS = {
    "activation": (L.Activation, (4,)),
    "conv": (lambda f: L.Conv1D(3, 2, activation=f), (5, 4)),
    "conv_transpose": (lambda f: L.Conv1DTranspose(3, 2, activation=f), (5, 4)),
    "dense": (lambda f: L.Dense(3, activation=f), (4,)),
    "depthwise": (lambda f: L.DepthwiseConv1D(2, activation=f), (5, 4)),
    "einsum": (lambda f: L.EinsumDense("abc,cd->abd", (5, 3), activation=f), (5, 4)),
    "separable": (lambda f: L.SeparableConv1D(3, 2, activation=f), (5, 4)),
}
MIXING = {
    "function": lambda: minus_mean,
    "known_function_along_records": lambda: functools.partial(keras.ops.log_softmax, axis=0),
    "layer_along_records": lambda: L.UnitNormalization(axis=0),
    "unknown_layer_in_a_model": lambda: keras.Sequential([L.ReLU(), L.Lambda(minus_mean)]),
}
KNOWN = {
    "keras": lambda: "gelu",
    "keras_along_last_axis": lambda: "softmax",
    "keras_with_arguments": lambda: functools.partial(keras.activations.gelu, approximate=True),
    "layer": lambda: L.LeakyReLU(0.2),
    "layers": lambda: keras.Sequential([L.ReLU(), L.Rescaling(2.0)]),
    "none": lambda: None,
    "operation": lambda: keras.ops.tanh,
    "tensorflow": lambda: tf.nn.relu,
}


@pytest.mark.parametrize("layer", sorted(LAYERS))
@pytest.mark.parametrize("activation", sorted(MIXING))
def test_layer_whose_activation_mixes_records_runs_record_by_record(layer, activation):
    make, shape = LAYERS[layer]
    loss, variables, examples = problem(
        model_of(lambda: make(MIXING[activation]()), shape), normal(*shape)
    )
    assert_engines_agree(loss, variables, examples)


def test_running_it_on_a_batch_would_differ(monkeypatch):
    """Power: the test above fails without the check."""
    monkeypatch.setattr(LayerRule, "holds_for", lambda self, layer: True)
    make, shape = LAYERS["dense"]
    loss, variables, examples = problem(model_of(lambda: make(minus_mean), shape), normal(*shape))
    with pytest.raises(AssertionError):
        assert_engines_agree(loss, variables, examples)


@pytest.mark.parametrize("activation", sorted(KNOWN))
def test_known_activation_keeps_the_rule(activation):
    function = KNOWN[activation]()
    assert isinstance(rule_for(L.Dense(3, activation=function)), LayerRule)
    assert isinstance(rule_for(L.Activation(function)), RecordWise)


@pytest.mark.parametrize("activation", ["keras_along_last_axis", "layers"])
def test_known_activation_is_exact(activation):
    make, shape = LAYERS["dense"]
    loss, variables, examples = problem(
        model_of(lambda: make(KNOWN[activation]()), shape), normal(*shape)
    )
    assert_engines_agree(loss, variables, examples)
