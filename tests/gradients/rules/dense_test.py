"""Dense against the explicit loop, on vectors, sequences and with low-rank adaptation."""

import keras
import pytest

from tests.gradients.problems import (
    assert_layer_agrees,
    assert_layer_is_exact,
    how_it_runs,
    lora,
    model_of,
)

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "dense": (lambda: L.Dense(3, activation="tanh"), (4,)),
    "dense_no_bias": (lambda: L.Dense(3, use_bias=False), (4,)),
    "dense_sequence": (lambda: L.Dense(3, activation="relu"), (5, 4)),
    "dense_long_sequence": (lambda: L.Dense(2), (40, 3)),
    "dense_4d": (lambda: L.Dense(3), (2, 3, 4)),
}


# Keras has the factors of a low-rank adaptation in single precision only.
ADAPTED = {
    "dense_lora": (lambda: lora(L.Dense(3)), (4,)),
    "dense_lora_sequence": (lambda: lora(L.Dense(3)), (5, 4)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert how_it_runs(model_of(*LAYERS[name])) == ["DenseRule"]
    assert_layer_is_exact(*LAYERS[name])


@pytest.mark.parametrize("name", sorted(ADAPTED))
def test_low_rank_adaptation(name):
    assert how_it_runs(model_of(*ADAPTED[name])) == ["DenseRule"]
    assert_layer_agrees(*ADAPTED[name])
