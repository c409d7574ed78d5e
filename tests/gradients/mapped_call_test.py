"""Layers that run record by record, in a pass over the whole batch."""

import keras
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    TOKENS,
    Block,
    Position,
    assert_layer_agrees,
    assert_layer_is_exact,
    assert_tokens_agree,
    token_model,
)

L = keras.layers


class Cell(L.SimpleRNNCell):
    """A cell of the user's own, which no rule knows."""


# name -> (layer, shape of its input)
LAYERS = {
    "composite": (Block, (5, 4)),
    "recurrent_without_a_rule": (lambda: L.RNN(Cell(3)), (4, 3)),
    "recurrent_with_other_options": (
        lambda: L.SimpleRNN(3, activation=lambda x: tf.math.lgamma(2.5 + tf.tanh(x))),
        (4, 3),
    ),
}


def test_layers_have_no_rule():
    for name, (layer, shape) in LAYERS.items():
        model = keras.Sequential([keras.Input(shape), layer(), L.Flatten(), L.Dense(2)])
        by_record = tfdp.gradients.explain(model).count("record by record")
        assert by_record == (0 if name == "composite" else 1), name


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer_without_a_rule(name):
    assert_layer_agrees(*LAYERS[name])


def test_layer_with_a_weight_of_its_own():
    assert_layer_is_exact(Position, (5, 4))


@tf.custom_gradient
def with_another_gradient(x):
    return tf.square(x), lambda g: 3.0 * g


class InFrontOfALoop(L.Layer):
    """A loop, whose inputs' gradient TensorFlow does not vectorize, and a gradient of one's own."""

    def __init__(self):
        super().__init__()
        self.loop = L.SimpleRNN(3)

    def call(self, inputs):
        return self.loop(with_another_gradient(inputs))


@pytest.mark.filterwarnings("ignore:Gradients are computed one example at a time")
def test_gradients_of_ones_own_are_kept():
    assert_layer_agrees(InFrontOfALoop, (4, 3))


# name -> layers of a model whose tokens are masked where they are 0.
MASKED = {
    "recurrent": lambda: [L.Embedding(7, 4, mask_zero=True), L.RNN(Cell(3))],
    "composite": lambda: [L.Embedding(7, 4, mask_zero=True), Block(), L.GlobalAveragePooling1D()],
}


@pytest.mark.parametrize("name", sorted(MASKED))
def test_masks_reach_a_layer_without_a_rule(name):
    tokens = TOKENS.copy()
    tokens[:, 4] = 0
    assert_tokens_agree(token_model(*MASKED[name]()), tokens)


def test_layer_without_a_rule_on_an_embedding():
    assert_tokens_agree(token_model(L.Embedding(7, 4), Position()), TOKENS)
