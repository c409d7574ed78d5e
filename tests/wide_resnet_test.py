"""The tutorial's wide residual network: its steps are those of the loop, and all is charged."""

import pathlib
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.keras import records_of_fit
from tfdp.sampling import FullBatch

TUTORIALS = pathlib.Path(__file__).parents[1] / "tutorials"
X = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")
Y = np.array([0, 3, 9, 1])


@pytest.fixture
def tutorial(monkeypatch):
    monkeypatch.syspath_prepend(str(TUTORIALS))
    import wrn_cifar10

    return wrn_cifar10


def trained(tutorial, engine):
    """Weights after three steps without noise, on two views of every image."""
    keras.utils.set_random_seed(0)
    model = tfdp.keras.make_private(tutorial.wide_resnet(10, 1, side=8, base=4))
    query = tfdp.GaussianAverageQuery(0.5, noise_multiplier=0.0, denominator=len(X))
    model.compile(
        optimizer=tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, engine=engine),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    before = [weight.copy() for weight in model.get_weights()]
    augment = tutorial.cropped_or_flipped
    model.fit(X, Y, epochs=3, sampling=FullBatch(), views=2, augment=augment, verbose=0)
    return before, model.get_weights()


def test_steps_are_those_of_the_explicit_loop(tutorial, monkeypatch):
    seeds = tf.constant(np.arange(4 * 8).reshape(-1, 2), tf.int64)
    monkeypatch.setattr(records_of_fit, "draw_seeds", lambda rows: seeds[: tf.cast(rows, tf.int32)])
    before, fast = trained(tutorial, "auto")
    same, slow = trained(tutorial, "loop")
    moved = 0.0
    for start, again, one, other in zip(before, same, fast, slow, strict=True):
        np.testing.assert_array_equal(start, again)
        np.testing.assert_allclose(one, other, atol=2e-5)
        moved = max(moved, np.abs(one - start).max())
    assert moved > 0.05


def test_filters_are_standardized(tutorial):
    layer = tutorial.StandardizedConv2D(5, 3, padding="same", use_bias=False)
    x = tf.constant(X)
    layer(x)
    kernel = np.random.default_rng(1).normal(2, 3, (3, 3, 3, 5))
    gain = np.arange(1.0, 6.0)
    layer.set_weights([kernel, gain])
    flat = kernel.reshape(27, 5)
    standardized = (flat - flat.mean(0)) / (flat.std(0) * np.sqrt(27)) * gain
    expected = tf.nn.conv2d(x, standardized.reshape(kernel.shape).astype("float32"), 1, "SAME")
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)


def test_network_has_the_size_of_the_paper(tutorial):
    # 2.75 million (De et al. 2022, table 2), and depth must fit three equal stages.
    assert tutorial.wide_resnet().count_params() == pytest.approx(2.75e6, rel=0.01)
    with pytest.raises(ValueError, match="Received: depth=15"):
        tutorial.wide_resnet(15)


def test_views_of_an_image_are_crops_and_mirrored(tutorial):
    image = tf.constant(X[0])
    padded = np.pad(X[0], [(4, 4), (4, 4), (0, 0)], mode="reflect")
    crops = [padded[i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
    crops += [crop[:, ::-1] for crop in crops]
    found = set()
    for number in range(40):
        view = tutorial.cropped_or_flipped(image, tf.constant([number, 7], tf.int64)).numpy()
        (which,) = [i for i, crop in enumerate(crops) if np.array_equal(crop, view)][:1]
        found.add(which)
    assert len(found) > 20 and min(found) < 81 <= max(found)


def test_training_stays_within_its_epsilon(tmp_path, tutorial, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 64), ("test", 20)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (size, 8, 8, 3)).astype("uint8")
        arrays[f"y_{part}"] = rng.integers(0, 10, (size, 1))
    np.savez(tmp_path / "data.npz", **arrays)
    options = ["--data", tmp_path / "data.npz", "--epsilon", 8, "--steps", 2, "--batch-size", 8]
    options += ["--depth", 10, "--width", 1, "--base", 4, "--views", 2, "--verbose", 0]
    options += ["--ledger", tmp_path / "l", "--checkpoint", tmp_path / "m.keras"]
    monkeypatch.setattr(sys, "argv", ["wrn_cifar10.py", *map(str, options)])
    # A stand-in that takes a second; the other tests are of the network.
    sizes = []

    def small(*size):
        sizes.append(size)
        layers = [tutorial.StandardizedConv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((8, 8, 3)), *layers])

    monkeypatch.setattr(tutorial, "wide_resnet", small)
    tutorial.main()
    assert sizes == [(10, 1, 8, 4)]
    output = capsys.readouterr().out
    (spent,) = re.findall(r"epsilon = ([\d.]+) by prv", output)
    assert 7.9 < float(spent) <= 8.0
    assert tfdp.PrivacyLedger.load(tmp_path / "l").total_count == 2
    assert (tmp_path / "m.keras").exists()
