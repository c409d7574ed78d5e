"""Depthwise and separable convolutions, against the explicit loop."""

import keras
import pytest

from tests.gradients.problems import assert_layer_is_exact

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "depthwise": (lambda: L.DepthwiseConv2D(3, depth_multiplier=2, activation="tanh"), (5, 5, 2)),
    "separable1d": (lambda: L.SeparableConv1D(3, 3), (6, 2)),
    "separable2d": (lambda: L.SeparableConv2D(3, 3, depth_multiplier=2), (5, 5, 2)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert_layer_is_exact(*LAYERS[name])
