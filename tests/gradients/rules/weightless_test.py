"""Layers without weights: which are known to treat records separately."""

import keras
import pytest
import tensorflow as tf

from tests.gradients.problems import assert_layer_is_exact
from tfdp.gradients import explain
from tfdp.gradients.rules.rule import RecordWise, rule_for

L = keras.layers


@pytest.mark.skipif(not hasattr(L, "AdaptiveMaxPooling1D"), reason="Keras has none before 3.13")
@pytest.mark.parametrize("size", [2, 3])
def test_adaptive_pooling_runs_on_the_batch(size):
    for make, shape in (
        (lambda: L.AdaptiveAveragePooling1D(size), (7, 3)),
        (lambda: L.AdaptiveMaxPooling2D((size, 2)), (7, 5, 3)),
        (lambda: L.AdaptiveAveragePooling2D(size), (7, 6, 2)),
    ):
        assert_layer_is_exact(make, shape)
        inputs = keras.Input(shape)
        model = keras.Model(inputs, L.Dense(2)(L.Flatten()(make()(inputs))))
        assert "record by record" not in explain(model)


def test_unit_normalization():
    assert isinstance(rule_for(L.UnitNormalization()), RecordWise)
    assert_layer_is_exact(L.UnitNormalization, (4,))


@pytest.mark.parametrize(
    "layer",
    [
        L.Flatten(),
        L.Concatenate(axis=1),
        L.Concatenate(axis=-1),
        L.Dropout(0.5),
        L.Dropout(0.5, noise_shape=(None, 1)),
        L.UnitNormalization(axis=[1, 2]),
        L.Activation("relu"),
        L.BatchNormalization(trainable=False),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_treat_every_record_separately(layer):
    assert isinstance(rule_for(layer), RecordWise)


@pytest.mark.parametrize(
    "layer",
    [
        # Axis 0 is that of records, and -2 is where a record is a vector.
        L.Concatenate(axis=0),
        L.Concatenate(axis=-2),
        L.UnitNormalization(axis=[0, 1]),
        L.Dot(axes=(0, 1)),
        # One draw for all records: what one record loses, the others lose too.
        L.Dropout(0.5, noise_shape=(1, 1)),
        L.Activation(lambda x: x - tf.reduce_mean(x, 0)),
        # It normalizes by the mean of the batch.
        L.BatchNormalization(),
        # It takes the largest number of the batch for zero decibels.
        L.MelSpectrogram(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_may_mix_records_have_no_rule(layer):
    assert rule_for(layer) is None


def test_softmax_of_records_that_are_one_number_has_no_promise():
    rule, softmax = rule_for(L.Softmax()), L.Softmax()
    with tf.Graph().as_default():
        assert rule.holds_on(softmax, tf.compat.v1.placeholder(tf.float32, [None, 3]))
        # The last axis of [n] is that of records.
        assert not rule.holds_on(softmax, tf.compat.v1.placeholder(tf.float32, [None]))


def test_random_flip_has_a_promise_for_images_with_an_axis_of_records():
    rule, flip = rule_for(L.RandomFlip()), L.RandomFlip()
    with tf.Graph().as_default():
        assert rule.holds_on(flip, tf.compat.v1.placeholder(tf.float32, [None, 4, 4, 1]))
        # It would take the records for the rows of one image, and turn them around.
        assert not rule.holds_on(flip, tf.compat.v1.placeholder(tf.float32, [None, 4, 4]))
