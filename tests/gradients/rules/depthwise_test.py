"""Depthwise and separable convolutions, against the explicit loop."""

import keras
import pytest

from tests.gradients.problems import assert_layer_is_exact, how_it_runs, model_of

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "depthwise": (lambda: L.DepthwiseConv2D(3, depth_multiplier=2, activation="tanh"), (5, 5, 2)),
    "depthwise_single_places": (
        lambda: L.DepthwiseConv1D(1, dilation_rate=2, padding="same"),
        (6, 2),
    ),
    "depthwise_dilated": (
        lambda: L.DepthwiseConv2D(3, dilation_rate=(2, 3), padding="same", depth_multiplier=2),
        (7, 5, 2),
    ),
    "depthwise_dilated_along_one_axis": (
        lambda: L.DepthwiseConv1D(2, dilation_rate=2, padding="same"),
        (5, 2),
    ),
    "separable1d_dilated": (
        lambda: L.SeparableConv1D(3, 3, dilation_rate=2, padding="same"),
        (3, 2),
    ),
    "separable2d_dilated": (
        lambda: L.SeparableConv2D(3, (1, 3), dilation_rate=2, padding="same"),
        (6, 5, 2),
    ),
    # Keras then adds the bias along the last axis.
    "separable1d_as_long_as_its_channels": (
        lambda: L.SeparableConv1D(3, 2, data_format="channels_first", activation="tanh"),
        (5, 4),
    ),
    "separable1d": (lambda: L.SeparableConv1D(3, 3), (6, 2)),
    "separable2d": (lambda: L.SeparableConv2D(3, 3, depth_multiplier=2), (5, 5, 2)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    if "channels" in name and tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13):
        pytest.skip("This Keras computes no depthwise convolution with channels first on a CPU.")
    kind = "Separable" if name.startswith("separable") else "Depthwise"
    assert how_it_runs(model_of(*LAYERS[name])) == [f"{kind}ConvolutionRule"]
    assert_layer_is_exact(*LAYERS[name])
