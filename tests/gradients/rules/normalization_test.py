"""Layers that normalize, against the explicit loop."""

import keras
import pytest

from tests.gradients.problems import assert_layer_is_exact

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "layer_norm": (lambda: L.LayerNormalization(), (5, 4)),
    "layer_norm_two_axes": (lambda: L.LayerNormalization(axis=[1, 2]), (5, 4)),
    "layer_norm_no_scale": (lambda: L.LayerNormalization(scale=False), (5, 4)),
    "layer_norm_no_center": (lambda: L.LayerNormalization(center=False), (4,)),
    "rms_norm": (lambda: L.RMSNormalization(), (5, 4)),
    "group_norm": (lambda: L.GroupNormalization(2), (3, 3, 4)),
    "group_norm_channels_first": (lambda: L.GroupNormalization(2, axis=1), (4, 3, 3)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert_layer_is_exact(*LAYERS[name])
