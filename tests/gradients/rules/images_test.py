"""Layers that prepare images: which run on the batch, and that every image has draws of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import BATCH, assert_engines_agree, by_engine, head, problem
from tfdp.gradients import explain
from tfdp.gradients.record_scope import RecordScope, Seeds
from tfdp.gradients.rules.rule import rule_for

L = keras.layers
SIZE = 6

# Layers, and the same ones where nothing is left to chance.
RANDOM = {
    "brightness": (lambda f: L.RandomBrightness(f, (0.0, 1.0)), 0.9, (0.3, 0.3)),
    "color_degeneration": (lambda f: L.RandomColorDegeneration(f, (0.0, 1.0)), 1.0, (0.3, 0.3)),
    "contrast": (lambda f: L.RandomContrast(f, (0.0, 1.0)), 0.9, (0.0, 0.0)),
    "crop": (lambda f: L.RandomCrop(*f), (2, 3), (SIZE, SIZE)),
    "erasing": (
        lambda f: L.RandomErasing(f, value_range=(0.0, 1.0)),
        (1.0, 1.0),
        (0.0, 0.0),
    ),
    "erasing_by_a_number": (lambda f: L.RandomErasing(f, fill_value=0.5), (1.0, 1.0), None),
    "flip": (L.RandomFlip, "horizontal_and_vertical", None),
    "hue": (lambda f: L.RandomHue(f, (0.0, 1.0)), 1.0, None),
    "invert": (lambda f: L.RandomInvert(f, (0.0, 1.0)), (0.5, 0.5), (1.0, 1.0)),
    "rotation": (L.RandomRotation, 0.4, (0.1, 0.1)),
    "saturation": (lambda f: L.RandomSaturation(f, (0.0, 1.0)), (0.1, 0.9), None),
    "sharpness": (lambda f: L.RandomSharpness(f, (0.0, 1.0)), 1.0, (0.3, 0.3)),
    "shear": (lambda f: L.RandomShear(f, f), (0.1, 0.9), (0.0, 0.0)),
    "translation": (lambda f: L.RandomTranslation(f, f), (-0.4, 0.4), (0.2, 0.2)),
    "zoom": (lambda f: L.RandomZoom(f, f), (-0.4, 0.4), (0.2, 0.2)),
}
FIXED = {
    "center_crop": lambda: L.CenterCrop(3, 4),
    "center_crop_of_small_images": lambda: L.CenterCrop(8, 8),
    "normalization": lambda: L.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0]),
    "rescaling": lambda: L.Rescaling(0.5, 0.1),
    "resizing": lambda: L.Resizing(4, 9),
    "resizing_cropped": lambda: L.Resizing(3, 6, crop_to_aspect_ratio=True),
    "resizing_padded": lambda: L.Resizing(3, 9, pad_to_aspect_ratio=True),
    **{
        name: lambda make=make, factor=factor: make(factor)
        for name, (make, _, factor) in RANDOM.items()
        if factor is not None
    },
}


def images(seed=0):
    return np.random.default_rng(seed).random((BATCH, SIZE, SIZE, 3)).astype("float32")


def on_batch(layer, x):
    """Returns what a layer gives on the batch, with fixed numbers in the place of secret ones."""

    @tf.function(autograph=False)
    def run(x):
        x = tf.compat.v1.placeholder_with_default(x, [None, *x.shape[1:]])
        assert rule_for(layer).holds_on(layer, x)
        with RecordScope(Seeds(tf.constant([3, 4], tf.int64))):
            return layer(x, training=True)

    return run(tf.constant(x)).numpy()


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_an_image_is_drawn_for_alone(name):
    make, factor, _ = RANDOM[name]
    layer, x = make(factor), images()
    before = on_batch(layer, x)
    other = np.array(x)
    other[1] = images(1)[1]
    after = on_batch(layer, other)
    np.testing.assert_array_equal(np.delete(after, 1, 0), np.delete(before, 1, 0))
    assert np.any(after[1] != before[1])


@pytest.mark.parametrize("name", sorted(RANDOM.keys() - {"crop"}))
def test_equal_images_have_draws_of_their_own(name):
    make, factor, _ = RANDOM[name]
    found = on_batch(make(factor), np.repeat(images()[:1], 16, axis=0))
    few = name in ("flip", "invert")
    assert len(np.unique(found.reshape(16, -1), axis=0)) > (1 if few else 10)


def model_with(layer, size=SIZE):
    keras.utils.set_random_seed(1)
    x = keras.Input((size, size, 3))
    before = L.Conv2D(3, 1, activation="sigmoid", name="first")(x)
    return keras.Model(x, head(L.Conv2D(2, 3, padding="same")(layer(before))))


@pytest.mark.parametrize("name", sorted(FIXED))
def test_gradients_through_the_layer_are_those_of_the_loop(name):
    model = model_with(FIXED[name]())
    assert "record by record" not in explain(model)
    assert_engines_agree(*problem(model, images()))


def test_a_crop_is_at_one_place_for_all():
    found = on_batch(L.RandomCrop(2, 3), np.repeat(images()[:1], 16, axis=0))
    np.testing.assert_array_equal(found, np.repeat(found[:1], 16, axis=0))


def test_a_model_with_a_crop_is_taken():
    model = model_with(L.RandomCrop(3, 3, name="crop"))
    assert "record by record" not in explain(model)
    loss, variables, examples = problem(model, images())
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    total = by_engine(loss, variables, examples, query, "bookkeeping")
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in total))
    assert 0 < norm <= BATCH * 0.3


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_records_are_no_rows_of_one_image(name):
    make, factor, _ = RANDOM[name]
    layer = make(factor)
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, SIZE, 2])
        assert not rule_for(layer).holds_on(layer, x)
