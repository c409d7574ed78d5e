"""MNIST and CIFAR-10 on scattering features, as in Tramer and Boneh 2021 (arXiv:2011.11660).

    python tutorials/scattering.py --data mnist.npz --epsilon 3 --seeds 3 --cache features.npz

The scattering transform is public, and a small private model on its features beats a deep one that
must learn them. Features are normalized in groups of channels of one image, which is free, or by
means and variances of the training data, which are noised and charged. The noise of the steps is
what the rest of the budget needs: the ledger has both.
"""

import argparse
import math
import pathlib
import time
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from scattering_transform import Scattering

import tfdp

ANGLES, SCALES = 8, 2


class Setting(NamedTuple):
    """How a model is trained, by momentum 0.9 and a learning rate that falls to zero."""

    model: str = "linear"
    normalization: str = "data"
    batch_size: int = 4096
    epochs: int = 30
    learning_rate: float = 8.0
    l2_norm_clip: float = 0.1


# Rows: brightness, and two differences of colors. Orthonormal, and the same for any image.
OPPONENT = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]]) / np.sqrt([[3], [2], [6]])


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


def scattered(images: np.ndarray, opponent: bool = False) -> np.ndarray:
    """Returns float16 [n, side / 4, side / 4, 81 * channels]; 81 of the first channel first.

    Args:
        images: uint8 [n, side, side, channels].
        opponent: Of brightness and two differences in place of red, green and blue.
    """
    transform = Scattering(images.shape[1], SCALES, ANGLES)
    result = []
    for start in range(0, len(images), 100):
        batch = images[start : start + 100].astype("float32") / 255
        if opponent:
            batch = batch @ OPPONENT.T.astype("float32")
        found = [transform(batch[..., c]) for c in range(batch.shape[-1])]
        result.append(tf.concat(found, -1).numpy().astype("float16"))
    return np.concatenate(result)


def load_features(options: argparse.Namespace) -> list[np.ndarray]:
    """Returns features and labels for training, and for test; from the cache if there is one."""
    names = ("x_train", "y_train", "x_test", "y_test")
    if options.cache and options.cache.exists():
        with np.load(options.cache) as data:
            arrays = [data[name] for name in names]
    else:
        start = time.process_time()
        x_train, y_train, x_test, y_test = load_images(options.data, options.dataset)
        opponent = options.colors == "opponent"
        arrays = [scattered(x_train, opponent), y_train, scattered(x_test, opponent), y_test]
        print(f"transformed in {time.process_time() - start:.0f} s of processors", flush=True)
        if options.cache:
            np.savez(options.cache, **dict(zip(names, arrays, strict=True)))
    if options.validation:
        x, y = arrays[:2]
        kept = len(x) - options.validation
        arrays = [x[:kept], y[:kept], x[kept:], y[kept:]]
    return arrays


def in_batches(function, x: np.ndarray) -> np.ndarray:
    """Applies a function to thousands of images at once, as float32; returns float16."""
    result = np.empty_like(x)
    for start in range(0, len(x), 1000):
        result[start : start + 1000] = function(x[start : start + 1000].astype("float32"))
    return result


def group_normalized(x: np.ndarray, groups: int) -> np.ndarray:
    """Returns images of which every group of channels has mean zero and variance one."""

    def function(batch):
        n, rows, columns, channels = batch.shape
        grouped = batch.reshape(n, rows * columns, groups, channels // groups)
        mean = grouped.mean((1, 3), keepdims=True)
        deviation = grouped.std((1, 3), keepdims=True)
        return ((grouped - mean) / (deviation + 1e-5)).reshape(batch.shape)

    return in_batches(function, x)


def symmetric(x: np.ndarray) -> np.ndarray:
    """Returns [n, rows, columns / 2, channels]: what an image and its mirror image share.

    A linear model of them gives an image and its mirror image one answer, and has half the weights,
    and so half the noise. The transform keeps every fourth column, so that this is nearly, not
    quite, the transform of the mirror image.
    """
    # Angle i is (3 - i) pi / 8; in the mirror it is that of (6 - i) mod 8.
    angle = (ANGLES - 2 - np.arange(ANGLES)) % ANGLES
    first = [1 + ANGLES * scale + angle for scale in range(SCALES)]
    second = 1 + SCALES * ANGLES + (ANGLES * angle[:, None] + angle).ravel()
    one = np.concatenate([[0], *first, second])
    mirrored = np.concatenate([len(one) * c + one for c in range(x.shape[-1] // len(one))])
    half = x.shape[2] // 2
    result = np.empty((*x.shape[:2], half, x.shape[-1]), x.dtype)
    for start in range(0, len(x), 1000):
        batch = x[start : start + 1000].astype("float32")
        both = batch + batch[:, :, ::-1][..., mirrored]
        result[start : start + 1000] = both[:, :, :half] / math.sqrt(2)
    return result


def weighted(x: np.ndarray, orders: list[float], color: float) -> np.ndarray:
    """Returns channels times public constants, whose mean square over all of them is one.

    Args:
        x: Features [..., channels].
        orders: For averages, for wavelets, and for pairs of wavelets.
        color: For all channels of the second and third color, besides.
    """
    of_one = np.repeat(orders, _counts())
    colors = x.shape[-1] // len(of_one)
    weights = np.concatenate([of_one] + [color * of_one] * (colors - 1))
    weights = (weights / np.sqrt(np.mean(weights**2))).astype("float32")
    return in_batches(lambda batch: batch * weights, x)


def data_normalized(
    x_train: np.ndarray, x_test: np.ndarray, ledger: tfdp.PrivacyLedger, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images less the mean of every channel, over its deviation, both noised and charged.

    A record is an image's mean and mean square of every channel. Channels are scaled by public
    constants first, so that one size of noise suits all of these numbers.
    """
    colors = x_train.shape[-1] // len(_sizes())
    scale = np.tile(_sizes(), colors)

    def moments(batch):
        batch = batch.astype("float32") / scale
        return np.concatenate([batch.mean((1, 2)), np.square(batch).mean((1, 2))], axis=1)

    starts = range(0, len(x_train), 1000)
    records = np.concatenate([moments(x_train[start : start + 1000]) for start in starts])
    clip = 2 * math.sqrt(records.shape[1])  # Twice the norm of a record of ones.
    query = tfdp.GaussianSumQuery(clip, noise_multiplier * clip)
    state = query.initial_global_state()
    params = query.derive_sample_params(state)

    @tf.function
    def clipped_sum(records):
        return tf.foldl(
            lambda total, record: query.accumulate_record(params, total, record),
            records,
            query.initial_sample_state(records[0]),
        )

    total = clipped_sum(tf.constant(records, tf.float32))
    ledger.append(query.derive_event(state))
    noised = query.get_noised_result(total, state)[0].numpy() / len(x_train)
    mean, square = np.split(noised, 2)
    deviation = np.sqrt(np.maximum(square - mean**2, 1e-3))
    return tuple(
        in_batches(lambda batch: (batch / scale - mean) / deviation, x) for x in (x_train, x_test)
    )


def _sizes() -> np.ndarray:
    """Returns about how large the channels of an image are: smaller the more wavelets there are."""
    return np.repeat([1 / 4, 1 / 32, 1 / 256], _counts()).astype("float32")


def _counts() -> list[int]:
    """Returns how many channels are averages, of one wavelet, and of two."""
    return [1, SCALES * ANGLES, ANGLES**2 * SCALES * (SCALES - 1) // 2]


def make_model(kind: str, shape: tuple[int, ...]) -> keras.Model:
    """Returns a private model of features, with logits as outputs."""
    layers = keras.layers
    hidden = {
        "linear": [],
        "cnn": [layers.Conv2D(64, 3, strides=2, padding="same", activation="tanh")],
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
    if options.symmetric:
        x_train, x_test = symmetric(x_train), symmetric(x_test)
    if setting.normalization == "data":
        x_train, x_test = data_normalized(x_train, x_test, ledger, options.moments_noise)
    else:
        x_train, x_test = (group_normalized(x, options.groups) for x in (x_train, x_test))
    if options.weights:
        x_train, x_test = (weighted(x, options.weights, options.color) for x in (x_train, x_test))
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
    parser.add_argument("--cache", type=pathlib.Path, help="an .npz for features, read or written")
    parser.add_argument("--epsilon", type=float, default=3.0, help="of everything")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--model", choices=["linear", "cnn"])
    parser.add_argument("--normalization", choices=["group", "data"])
    parser.add_argument("--groups", type=int, default=27, help="of channels")
    parser.add_argument("--moments-noise", type=float, default=8.0, help="of data normalization")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--l2-norm-clip", type=float)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--validation", type=int, metavar="N", help="test on N training images")
    parser.add_argument("--ledger", type=pathlib.Path, help="where to save the first ledger")
    parser.add_argument("--verbose", type=int, default=0, help="of fit")
    options = parser.parse_args()
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
