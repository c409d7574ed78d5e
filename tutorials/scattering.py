"""MNIST and CIFAR-10 on scattering features, as in Tramer and Boneh 2021 (arXiv:2011.11660).

    python tutorials/scattering.py --data mnist.npz --epsilon 3 --seeds 3 --cache features.npz

The scattering transform is public, and a small private model on its features beats a deep one that
must learn them. A random convolution between the two (--random-filters) is public, too, and lets a
linear model see what a convolution would. Features are normalized in groups of channels of one
image, which is free, or by means and variances of the training data, which are noised and charged.
The noise of the steps is what the rest of the budget needs: the ledger has both.
"""

import argparse
import json
import pathlib
import sys
import time
import zipfile
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from random_features import RandomFeatures
from scattering_features import (
    data_normalized,
    group_normalized,
    scattered,
    sizes,
    symmetric,
    weighted,
)

import tfdp


class Setting(NamedTuple):
    """How a model is trained, by momentum 0.9 and a learning rate that falls to zero."""

    model: str = "linear"
    normalization: str = "data"
    batch_size: int = 4096
    epochs: int = 30
    learning_rate: float = 8.0
    l2_norm_clip: float = 0.1
    feature_scale: float = 1.0  # Of the inputs. The larger, the larger are their own gradients.


def load_images(path: str | None, dataset: str) -> list[np.ndarray]:
    """Returns training images, uint8 [n, side, side, channels], labels [n], and those for test."""
    if path is None:
        source = getattr(keras.datasets, dataset)
        arrays = [a for part in source.load_data() for a in part]
    else:
        with np.load(path) as data:
            parts = ("train", "test")
            if "jpeg_train" in data:
                arrays = [a for p in parts for a in (_decoded(data, p), data[f"y_{p}"])]
            else:
                arrays = [data[f"{k}_{p}"] for p in parts for k in "xy"]
    sides = arrays[0].shape[1]
    return [a.reshape(len(a), sides, sides, -1) if a.ndim > 2 else a.ravel() for a in arrays]


def _decoded(data, part: str) -> np.ndarray:
    """Returns the images of a file that holds JPEGs one after another, and where each starts."""
    flat, offsets = data[f"jpeg_{part}"], data[f"offsets_{part}"]
    pairs = zip(offsets[:-1], offsets[1:], strict=True)
    return np.stack([tf.io.decode_jpeg(flat[a:b].tobytes()).numpy() for a, b in pairs])


NAMES = ("x_train", "y_train", "x_test", "y_test")


def load_features(options: argparse.Namespace) -> list[np.ndarray]:
    """Returns features and labels for training, and for test; from the caches if there are any."""
    arrays = random_features(options) if options.random_filters else scattering(options)
    if options.validation:
        x, y = arrays[:2]
        kept = len(x) - options.validation
        arrays = [x[:kept], y[:kept], x[kept:], y[kept:]]
    return arrays


def scattering(options: argparse.Namespace) -> list[np.ndarray]:
    """Returns the transform of all images, and labels."""
    if options.cache and options.cache.exists():
        with np.load(options.cache) as data:
            return [data[name] for name in NAMES]
    start = time.process_time()
    x_train, y_train, x_test, y_test = load_images(options.data, options.dataset)
    opponent = options.colors == "opponent"
    arrays = [scattered(x_train, opponent), y_train, scattered(x_test, opponent), y_test]
    print(f"transformed in {time.process_time() - start:.0f} s of processors", flush=True)
    if options.cache:
        np.savez(options.cache, **dict(zip(NAMES, arrays, strict=True)))
    return arrays


def random_features(options: argparse.Namespace) -> list[np.ndarray]:
    """Returns the random convolution of the transform of all images, and labels."""
    setting = {
        "filters": options.random_filters,
        "orders": tuple(options.weights or (2.0, 1.0, 0.5)),
        "color": options.color,
        "cells": options.cells,
        "mirror": options.symmetric,
    }
    path = options.random_cache
    if path and path.exists():
        with np.load(path) as data:
            key, expected = data["key"].item(), cache_key(setting, options.cache)
            if key != expected:
                raise SystemExit(
                    f"{path} has other random features: {key}, not {expected}. Delete it, or give "
                    "another --random-cache."
                )
            return [data[name] for name in NAMES]
    arrays = scattering(options)
    start = time.process_time()
    side, channels = arrays[0].shape[2:]
    made = RandomFeatures(4 * side, channels // 81, **setting)
    arrays[::2] = (made(x) for x in arrays[::2])
    print(f"random features in {time.process_time() - start:.0f} s of processors", flush=True)
    if path:
        key = cache_key(setting, options.cache)
        np.savez(path, key=np.array(key), **dict(zip(NAMES, arrays, strict=True)))
    return arrays


def cache_key(setting: dict[str, object], features: pathlib.Path) -> str:
    """Returns the setting, and checksums of the features, which are read without reading these."""
    if not features.exists():
        raise SystemExit(f"There is no {features} to compare the random features with.")
    with zipfile.ZipFile(features) as parts:
        checksums = {part.filename: part.CRC for part in parts.infolist()}
    return json.dumps({**setting, "features": checksums})


def make_model(kind: str, shape: tuple[int, ...]) -> keras.Model:
    """Returns a private model of features, with logits as outputs."""
    layers = keras.layers
    hidden = {
        "linear": [],
        "cnn": [layers.Conv2D(64, 3, strides=2, padding="same", activation="tanh")],
        # The dense layers of Abadi et al. 2016 (arXiv:1607.00133), section 5.3.
        "dense": [layers.Flatten(), *(layers.Dense(384, "tanh") for _ in range(2))],
    }[kind]
    return tfdp.keras.DPSequential(
        [
            keras.Input(shape),
            *hidden,
            layers.Flatten(),
            layers.Dense(10, kernel_initializer="zeros"),
        ]
    )


def noise_that_fits(
    ledger: tfdp.PrivacyLedger, options: argparse.Namespace, batch_size: int, steps: int, size: int
) -> float:
    """Returns the least noise multiplier, to a percent, of steps that fit beside the ledger."""
    noise = tfdp.noise_for_budget(
        options.epsilon, options.delta, population_size=size, batch_size=batch_size, steps=steps
    )
    while True:
        plan = tfdp.accounting.TrainingPlan(size, batch_size, steps, noise)
        left = ledger.remaining(options.epsilon, options.delta, event=plan.event())
        if left.events >= steps:
            return noise
        noise *= 1.005


def train(
    arrays: list[np.ndarray], setting: Setting, options: argparse.Namespace, seed: int
) -> tuple[float, tfdp.PrivacyLedger]:
    """Returns the test accuracy, and the ledger of normalization and training."""
    keras.utils.set_random_seed(seed)
    x_train, y_train, x_test, y_test = arrays
    ledger = tfdp.PrivacyLedger()
    channels, random = x_train.shape[-1], options.random_filters
    if options.symmetric and not random:
        x_train, x_test = symmetric(x_train), symmetric(x_test)
    if setting.normalization == "data":
        scale = np.ones(channels, "float32") if random else sizes(channels)
        x_train, x_test = data_normalized(x_train, x_test, scale, ledger, options.moments_noise)
    elif setting.normalization == "group":
        x_train, x_test = (group_normalized(x, options.groups) for x in (x_train, x_test))
    if options.weights and not random:
        x_train, x_test = (weighted(x, options.weights, options.color) for x in (x_train, x_test))
    if setting.feature_scale != 1.0:
        x_train, x_test = (x * np.float16(setting.feature_scale) for x in (x_train, x_test))
    size, batch = len(x_train), setting.batch_size
    per_epoch = round(size / batch)
    steps = setting.epochs * per_epoch
    noise = noise_that_fits(ledger, options, batch, steps, size)
    rate = setting.learning_rate
    model = make_model(setting.model, x_train.shape[1:])
    model.compile(
        optimizer=tfdp.keras.DPOptimizer(
            keras.optimizers.SGD(
                keras.optimizers.schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0),
                momentum=0.9,
            ),
            tfdp.GaussianAverageQuery(
                setting.l2_norm_clip, noise_multiplier=noise, denominator=batch
            ),
            ledger=ledger,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch,
        epochs=setting.epochs,
        steps_per_epoch=per_epoch,
        validation_data=(x_test, y_test),
        validation_batch_size=1000,
        validation_freq=1 if options.verbose else setting.epochs,
        callbacks=[tfdp.keras.PrivacyBudget(options.epsilon, options.delta)],
        verbose=options.verbose,
    )
    return history.history["val_accuracy"][-1], ledger


def main() -> None:
    """Trains with several seeds, and prints accuracy and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="an .npz of images, or of JPEGs; else Keras downloads it")
    parser.add_argument("--dataset", choices=["mnist", "cifar10"], default="mnist")
    parser.add_argument("--colors", choices=["rgb", "opponent"], default="rgb")
    parser.add_argument("--symmetric", action="store_true", help="only what mirror images share")
    parser.add_argument("--weights", type=float, nargs=3, help="of averages, wavelets and pairs")
    parser.add_argument("--color", type=float, default=1.0, help="weight of differences of colors")
    parser.add_argument("--random-filters", type=int, default=0, help="of a public convolution")
    parser.add_argument("--cells", type=int, default=2, help="rows and columns of its averages")
    parser.add_argument("--cache", type=pathlib.Path, help="an .npz for features, read or written")
    parser.add_argument("--random-cache", type=pathlib.Path, help="one for random features, too")
    parser.add_argument("--epsilon", type=float, default=3.0, help="of everything")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--model", choices=["linear", "cnn", "dense"])
    parser.add_argument("--normalization", choices=["group", "data", "none"])
    parser.add_argument("--groups", type=int, default=27, help="of channels")
    parser.add_argument("--moments-noise", type=float, default=8.0, help="of data normalization")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--l2-norm-clip", type=float)
    parser.add_argument("--feature-scale", type=float, help="of inputs that have variance one")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--validation", type=int, metavar="N", help="test on N training images")
    parser.add_argument("--ledger", type=pathlib.Path, help="where to save the first ledger")
    parser.add_argument("--verbose", type=int, default=int(sys.stdout.isatty()), help="of fit")
    options = parser.parse_args()
    if options.random_cache and not (options.cache and options.random_filters):
        parser.error("--random-cache is for --random-filters, and needs --cache, too")
    given = {name: getattr(options, name) for name in Setting._fields}
    given = {name: value for name, value in given.items() if value is not None}
    setting = Setting(**given)
    print(setting)
    arrays = load_features(options)
    found = []
    for seed in range(options.seeds):
        start, processor = time.perf_counter(), time.process_time()
        accuracy, ledger = train(arrays, setting, options, seed)
        found.append(accuracy)
        (event, count) = list(ledger)[-1]
        print(
            f"seed {seed}: test accuracy {accuracy:.4f}, epsilon "
            f"{ledger.epsilon(options.delta):.4f}, {count} steps of noise multiplier "
            f"{event.event.noise_multiplier:.3f}, {time.perf_counter() - start:.0f} s "
            f"({time.process_time() - processor:.0f} s of processors)",
            flush=True,
        )
        if seed == 0 and options.ledger:
            ledger.save(options.ledger)
    print(f"mean {np.mean(found):.4f}, from {min(found):.4f} to {max(found):.4f}")


if __name__ == "__main__":
    main()
