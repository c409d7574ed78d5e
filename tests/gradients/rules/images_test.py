"""Layers that prepare images: which run on the batch, and that every image has draws of its own."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import BATCH, assert_engines_agree, by_engine, head, problem
from tfdp.gradients import explain
from tfdp.gradients.record_scope import RecordScope, Seeds
from tfdp.gradients.rules.images import DRAW_ONCE
from tfdp.gradients.rules.rule import rule_for

L = keras.layers
SIZE = 6

# Layers, and the same ones where nothing is left to chance.
RANDOM = {
    "blur": (
        lambda f: L.RandomGaussianBlur(f, 3, (0.2, 1.0), (0.0, 1.0)),
        (0.5, 0.5),
        (0.0, 0.0),
    ),
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
    "grayscale": (L.RandomGrayscale, 0.5, 1.0),
    "hue": (lambda f: L.RandomHue(f, (0.0, 1.0)), 1.0, None),
    "invert": (lambda f: L.RandomInvert(f, (0.0, 1.0)), (0.5, 0.5), (1.0, 1.0)),
    "jitter": (
        lambda f: L.RandomColorJitter((0.0, 1.0), f, 0.4, (0.3, 0.7), 0.5),
        (-0.3, 0.3),
        None,
    ),
    "perspective": (lambda f: L.RandomPerspective((1.0, 1.0), f), 0.9, 0.0),
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


def runner(layer, seed=4, training=True, gradient=False):
    """Returns what runs a layer on batches, with fixed numbers in the place of secret ones, and, if
    asked for, gives the gradient of the sum of the outputs' squares, too.
    """

    @tf.function(autograph=False, reduce_retracing=True)
    def run(x):
        x = tf.compat.v1.placeholder_with_default(x, [None, *x.shape[1:]])
        assert rule_for(layer).holds_on(layer, x)
        with RecordScope(Seeds(tf.constant([3, seed], tf.int64))), tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=training)
            total = tf.reduce_sum(tf.square(outputs))
        return [outputs, tape.gradient(total, x)] if gradient else [outputs]

    return lambda x: [tensor.numpy() for tensor in run(tf.constant(x))]


def on_batch(layer, x, seed=4):
    return runner(layer, seed)(x)[0]


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


# TensorFlow has no gradient of them.
OF_HUES = ("hue", "jitter", "jitter_hue", "jitter_of_range", "jitter_saturation", "saturation")


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_an_image_that_is_not_finite_stays_alone(name):
    make, factor, _ = RANDOM[name]
    run, x = runner(make(factor), gradient=name not in OF_HUES), images()
    before = run(x)
    assert all(np.isfinite(tensor).all() for tensor in before)
    for bad in (np.nan, np.inf, -1e30):
        other = np.array(x)
        other[1, 2:5, 1] = bad
        for b, a in zip(before, run(other), strict=True):
            np.testing.assert_array_equal(np.delete(a, 1, 0), np.delete(b, 1, 0))


@pytest.mark.parametrize("name", sorted(RANDOM.keys() - {"blur", "crop"}))
def test_equal_images_have_draws_of_their_own(name):
    make, factor, _ = RANDOM[name]
    found = on_batch(make(factor), np.repeat(images()[:1], 16, axis=0))
    few = name in ("flip", "grayscale", "invert")
    assert len(np.unique(found.reshape(16, -1), axis=0)) > (1 if few else 10)


def model_with(layer, is_first=False):
    keras.utils.set_random_seed(1)
    x = keras.Input((SIZE, SIZE, 3))
    before = x if is_first else L.Conv2D(3, 1, activation="sigmoid", name="first")(x)
    return keras.Model(x, head(L.Conv2D(2, 3, padding="same")(layer(before))))


@pytest.mark.parametrize("name", sorted(FIXED))
def test_gradients_through_the_layer_are_those_of_the_loop(name):
    model = model_with(FIXED[name]())
    assert "record by record" not in explain(model)
    assert_engines_agree(*problem(model, images()))


def test_what_is_drawn_once_is_the_same_for_all_images():
    x = np.repeat(images()[:1], 16, axis=0)
    for layer in (L.RandomCrop(2, 3), L.RandomGaussianBlur((1.0, 1.0), 3, (0.2, 1.0))):
        assert type(layer) in DRAW_ONCE
        found = on_batch(layer, x)
        np.testing.assert_array_equal(found, np.repeat(found[:1], 16, axis=0))
        others = [on_batch(layer, x, seed) for seed in range(5, 15)]
        assert any(np.any(other != found) for other in others)


def test_whether_an_image_is_blurred_is_drawn_for_it_alone():
    x = np.repeat(images()[:1], 64, axis=0)
    found = on_batch(L.RandomGaussianBlur((0.5, 0.5), 3, (0.2, 1.0), (0.0, 1.0)), x)
    assert len(np.unique(found.reshape(64, -1), axis=0)) == 2
    assert 8 < np.sum(np.any(found != x, axis=(1, 2, 3))) < 56


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


# Options of layers that draw more than a factor can fix; what is drawn is replaced.
FIRST = "channels_first"
OPTIONS = {
    "blur": lambda **k: L.RandomGaussianBlur((1.0, 1.0), 3, 0.8, (0.0, 1.0), **k),
    "blur_of_no_image": lambda **k: L.RandomGaussianBlur((0.0, 0.0), 3, 0.8, (0.0, 1.0), **k),
    "blur_oblong": lambda **k: L.RandomGaussianBlur((1.0, 1.0), (3, 5), (0.1, 0.9), **k),
    "blur_of_range": lambda **k: L.RandomGaussianBlur((1.0, 1.0), 5, 1.0, (0.4, 0.6), **k),
    "gray": lambda **k: L.RandomGrayscale(1.0, **k),
    "gray_no_image": lambda **k: L.RandomGrayscale(0.0, **k),
    "jitter": lambda **k: L.RandomColorJitter((0, 1), 0.3, 0.4, (0.3, 0.7), 0.5, **k),
    "jitter_of_range": lambda **k: L.RandomColorJitter((0, 255), 0.3, 0.4, (0.3, 0.7), 0.5, **k),
    "jitter_brightness": lambda **k: L.RandomColorJitter((0, 1), brightness_factor=0.3, **k),
    "jitter_contrast": lambda **k: L.RandomColorJitter((0, 1), contrast_factor=0.3, seed=1, **k),
    "jitter_hue": lambda **k: L.RandomColorJitter((0, 1), hue_factor=0.3, **k),
    "jitter_saturation": lambda **k: L.RandomColorJitter((0, 1), saturation_factor=0.3, **k),
    "jitter_nothing": lambda **k: L.RandomColorJitter((0, 1), **k),
    "perspective": lambda **k: L.RandomPerspective((1.0, 1.0), 0.8, **k),
    "perspective_filled": lambda **k: L.RandomPerspective((1.0, 1.0), 1.0, fill_value=0.5, **k),
    "perspective_nearest": lambda **k: L.RandomPerspective(
        (1.0, 1.0), 0.7, interpolation="nearest", seed=3, **k
    ),
    "perspective_of_no_image": lambda **k: L.RandomPerspective((0.0, 0.0), 0.8, **k),
}
# Hue and saturation are made for the usual format, whatever the jitter's is.
TAKES_FIRST = sorted(
    OPTIONS.keys() - {"jitter", "jitter_of_range", "jitter_hue", "jitter_saturation"}
)


@pytest.fixture
def fixed_draws(monkeypatch):
    """Draws are the same for all records, and lie inside of their ranges."""

    def uniform(shape, minval=0.0, maxval=1.0, dtype=None, seed=None):
        rest = [int(size) for size in shape[1:]]
        steps = np.linspace(0.3, 0.9, int(np.prod(rest))).reshape(rest)
        drawn = tf.cast(minval + (maxval - minval) * steps, dtype or "float32")
        return tf.broadcast_to(drawn, tf.stack([shape[0], *rest]))

    monkeypatch.setattr(L.RandomFlip().backend.random, "uniform", uniform)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_options_give_the_gradients_of_the_loop(name, fixed_draws):
    model = model_with(OPTIONS[name](), is_first=name in OF_HUES)
    assert "record by record" not in explain(model)
    assert_engines_agree(*problem(model, images()))


def assert_alone_is_the_same(layer, x, training=True, tolerance=1e-6):
    run = runner(layer, training=training)
    found, alone = run(x)[0], [run(x[i : i + 1])[0][0] for i in range(BATCH)]
    np.testing.assert_allclose(found, np.stack(alone), rtol=0, atol=tolerance)
    return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_an_image_alone_is_the_same(name, training, fixed_draws):
    found = assert_alone_is_the_same(OPTIONS[name](), images(), training)
    changes = training and not name.endswith(("no_image", "nothing"))
    assert np.any(found != images()) == changes


@pytest.mark.parametrize("name", TAKES_FIRST)
def test_an_image_alone_is_the_same_with_channels_first(name, fixed_draws):
    x = np.moveaxis(images(), -1, 1)
    assert_alone_is_the_same(OPTIONS[name](data_format=FIRST), x)


# Keras makes no widths of a blur in float16, and draws no factors in integers.
@pytest.mark.parametrize("dtype", ["uint8", "float16"])
@pytest.mark.parametrize(
    "name, policy",
    [
        ("blur", "float64"),
        ("gray", "float16"),
        ("gray", "uint8"),
        ("jitter_of_range", "mixed_float16"),
        ("jitter_of_range", "float16"),
        ("perspective", "mixed_float16"),
        ("perspective", "float16"),
    ],
)
def test_an_image_alone_is_the_same_in_every_type(name, policy, dtype, fixed_draws):
    x = (255 * images()).astype(dtype)
    assert_alone_is_the_same(OPTIONS[name](dtype=policy), x, tolerance=0.25)


def test_grayscale_of_one_channel():
    x = images()[..., :1]
    try:
        keras.ops.image.rgb_to_grayscale(x)
    except tf.errors.InvalidArgumentError:
        pytest.skip("Keras 3.12 has no RandomGrayscale of one channel.")
    np.testing.assert_array_equal(on_batch(L.RandomGrayscale(1.0), x), x)


@pytest.mark.parametrize("name", ["blur", "gray", "jitter", "perspective"])
def test_images_in_a_dictionary_have_no_promise(name):
    layer = OPTIONS[name]()
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, SIZE, SIZE, 3])
        assert rule_for(layer).holds_on(layer, x)
        assert not rule_for(layer).holds_on(layer, {"images": x})


class MixedHue(L.RandomHue):
    """Brightens every image by the mean of all."""

    def transform_images(self, images, transformation=None, training=True):
        return images + tf.reduce_mean(images)


def test_jitter_with_code_of_others_in_it_has_no_promise():
    def jitter():
        return L.RandomColorJitter((0, 1), hue_factor=0.1, contrast_factor=0.2)

    assert rule_for(jitter()) is not None
    of_another_class, no_layer, patched = jitter(), jitter(), jitter()
    of_another_class.random_hue = MixedHue(0.1)
    no_layer.random_hue = types.SimpleNamespace(transform_images=lambda images, _: images)
    patched.random_contrast.transform_images = lambda images, transformation: images
    assert [rule_for(j) for j in (of_another_class, no_layer, patched)] == [None] * 3
