"""Layers that normalize, against the explicit loop."""

import keras
import numpy as np
import pytest

from tests.gradients.problems import (
    assert_agrees_for_any_length,
    assert_layer_is_exact,
    how_it_runs,
    model_of,
    normal,
    problem,
)
from tfdp.gradients.rules.rule import rule_for

L = keras.layers


def scaled(layer):
    """Returns a layer whose scales are not all the same."""

    def prepare(shape):
        layer.build(shape)
        layer.scale.assign(np.random.default_rng(2).normal(size=layer.scale.shape))

    layer.prepare = prepare
    return layer


# Scales and offsets are ones and zeros at first.
TRAINED = {"gamma_initializer": "random_normal", "beta_initializer": "random_normal"}
RULES = {"layer": "LayerNormalizationRule", "rms": "RMSNormalizationRule"}
RULES["group"] = "GroupNormalizationRule"
# name -> (layer, shape of its input)
LAYERS = {
    "layer_norm": (lambda: L.LayerNormalization(), (5, 4)),
    "layer_norm_two_axes": (lambda: L.LayerNormalization(axis=[1, 2]), (5, 4)),
    "layer_norm_no_scale": (lambda: L.LayerNormalization(scale=False), (5, 4)),
    "layer_norm_no_center": (lambda: L.LayerNormalization(center=False), (4,)),
    "layer_norm_trained": (lambda: L.LayerNormalization(**TRAINED), (5, 4)),
    "rms_norm": (lambda: L.RMSNormalization(), (5, 4)),
    "rms_norm_all_axes": (lambda: L.RMSNormalization(axis=[2, 1]), (5, 4)),
    # Keras takes the scale for one of the last axis.
    "rms_norm_another_axis": (lambda: scaled(L.RMSNormalization(axis=1)), (4, 4)),
    "rms_norm_between": (lambda: scaled(L.RMSNormalization(axis=[1, 2])), (4, 4, 4)),
    "rms_norm_of_one": (lambda: scaled(L.RMSNormalization(axis=1)), (1, 4)),
    "group_norm": (lambda: L.GroupNormalization(2), (3, 3, 4)),
    "group_norm_trained": (lambda: L.GroupNormalization(2, **TRAINED), (3, 3, 4)),
    "group_norm_channels_first": (lambda: L.GroupNormalization(2, axis=1), (4, 3, 3)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    if name == "rms_norm_all_axes":
        layer = L.RMSNormalization(axis=[2, 1])
        layer.build((None, 5, 4))
        if layer.scale.shape != (5, 4):
            pytest.skip("Keras 3.12 has no RMSNormalization of axes in another order.")
    assert how_it_runs(model_of(*LAYERS[name])) == [RULES[name.split("_")[0]]]
    assert_layer_is_exact(*LAYERS[name])


@pytest.mark.parametrize("make", [L.LayerNormalization, lambda: L.GroupNormalization(2)])
def test_records_of_any_length(make):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, 4))
    outputs = L.Dense(2)(L.GlobalAveragePooling1D()(make()(L.Dense(4)(inputs))))
    assert_agrees_for_any_length(*problem(keras.Model(inputs, outputs), normal(5, 4)))


@pytest.mark.parametrize(
    "axis, holds",
    [(-1, True), ([1, 2], True), ([1, -1], False), ([1, 1], False), (0, False), (-2, False)],
    ids=str,
)
def test_scale_by_axes_that_are_of_records_or_twice_the_same_has_no_rule(axis, holds):
    assert (rule_for(L.RMSNormalization(axis=axis)) is not None) == holds
