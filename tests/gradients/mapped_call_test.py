"""Layers that run record by record, in a pass over the whole batch."""

import keras
import pytest

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


# name -> (layer, shape of its input)
LAYERS = {
    "composite": (Block, (5, 4)),
    "lstm_without_a_rule": (lambda: L.LSTM(3, implementation=1), (4, 3)),
    "time_distributed": (lambda: L.TimeDistributed(L.Dense(2)), (4, 3)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer_without_a_rule(name):
    assert_layer_agrees(*LAYERS[name])


def test_layer_with_a_weight_of_its_own():
    assert_layer_is_exact(Position, (5, 4))


# name -> layers of a model whose tokens are masked where they are 0.
MASKED = {
    "lstm": lambda: [L.Embedding(7, 4, mask_zero=True), L.LSTM(3, implementation=1)],
    "composite": lambda: [L.Embedding(7, 4, mask_zero=True), Block(), L.GlobalAveragePooling1D()],
}


@pytest.mark.parametrize("name", sorted(MASKED))
def test_masks_reach_a_layer_without_a_rule(name):
    tokens = TOKENS.copy()
    tokens[:, 4] = 0
    assert_tokens_agree(token_model(*MASKED[name]()), tokens)


def test_layer_without_a_rule_on_an_embedding():
    assert_tokens_agree(token_model(L.Embedding(7, 4), Position()), TOKENS)
