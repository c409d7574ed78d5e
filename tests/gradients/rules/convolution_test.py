"""Convolutions and transposed ones, against the explicit loop."""

import keras
import pytest

from tests.gradients.problems import assert_layer_agrees, assert_layer_is_exact, lora

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "conv1d": (lambda: L.Conv1D(3, 3, strides=2, activation="relu"), (8, 2)),
    "conv1d_causal": (lambda: L.Conv1D(3, 2, dilation_rate=2, padding="causal"), (8, 2)),
    "conv2d": (lambda: L.Conv2D(3, 3, padding="same", activation="relu"), (6, 6, 2)),
    "conv2d_strides": (lambda: L.Conv2D(3, (3, 2), strides=(2, 1), use_bias=False), (7, 6, 2)),
    "conv2d_groups": (lambda: L.Conv2D(6, 3, groups=2), (5, 5, 4)),
    "conv2d_groups_of_one": (lambda: L.Conv2D(4, 3, strides=2, groups=2), (5, 5, 2)),
    "conv2d_large_groups_of_one": (lambda: L.Conv2D(3, 5, padding="same", groups=3), (7, 7, 3)),
    "conv1d_causal_groups_of_one": (lambda: L.Conv1D(4, 3, padding="causal", groups=4), (8, 4)),
    "conv3d_groups_of_one": (lambda: L.Conv3D(2, 2, groups=2), (3, 3, 3, 2)),
    "conv3d": (lambda: L.Conv3D(2, 2), (4, 4, 4, 1)),
    "conv1d_transpose": (lambda: L.Conv1DTranspose(2, 3, strides=2), (4, 2)),
    "conv2d_transpose": (
        lambda: L.Conv2DTranspose(2, 3, strides=2, padding="same", output_padding=1),
        (4, 4, 2),
    ),
}


# Keras has the factors of a low-rank adaptation in single precision only.
ADAPTED = {
    "conv2d_lora": (lambda: lora(L.Conv2D(3, 2)), (5, 5, 2)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert_layer_is_exact(*LAYERS[name])


@pytest.mark.parametrize("name", sorted(ADAPTED))
def test_low_rank_adaptation(name):
    assert_layer_agrees(*ADAPTED[name])
