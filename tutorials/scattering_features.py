"""What is made of images before anything is learned of them: scattering features, normalized.

All of it is the same function of one image, whatever the others are, and costs no privacy, but for
`data_normalized`, which says what it costs.
"""

import math
import sys
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from scattering_transform import Scattering

import tfdp

ANGLES, SCALES = 8, 2

# Rows: brightness, and two differences of colors. Orthonormal, and the same for any image.
OPPONENT = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]]) / np.sqrt([[3], [2], [6]])


def scattered(images: np.ndarray, opponent: bool = False) -> np.ndarray:
    """Returns float16 [n, side / 4, side / 4, 81 * channels]; 81 of the first channel first.

    Args:
        images: uint8 [n, side, side, channels].
        opponent: Of brightness and two differences in place of red, green and blue.
    """
    transform = Scattering(images.shape[1], SCALES, ANGLES)
    result, bar = (
        [],
        keras.utils.Progbar(len(images), unit_name="image", verbose=int(sys.stdout.isatty())),
    )
    for start in range(0, len(images), 100):
        batch = images[start : start + 100].astype("float32") / 255
        if opponent:
            batch = batch @ OPPONENT.T.astype("float32")
        found = [transform(batch[..., c]) for c in range(batch.shape[-1])]
        result.append(tf.concat(found, -1).numpy().astype("float16"))
        bar.update(start + len(batch))
    return np.concatenate(result)


def in_batches(function, x: np.ndarray, result: np.ndarray | None = None) -> np.ndarray:
    """Applies a function to thousands of images at once, as float32; returns float16."""
    result = np.empty_like(x) if result is None else result
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


def mirrored(channels: int) -> np.ndarray:
    """Returns which channel of an image each channel of its mirror image is."""
    # Angle i is (3 - i) pi / 8; in the mirror it is that of (6 - i) mod 8.
    angle = (ANGLES - 2 - np.arange(ANGLES)) % ANGLES
    first = [1 + ANGLES * scale + angle for scale in range(SCALES)]
    second = 1 + SCALES * ANGLES + (ANGLES * angle[:, None] + angle).ravel()
    one = np.concatenate([[0], *first, second])
    return np.concatenate([len(one) * c + one for c in range(channels // len(one))])


def symmetric(x: np.ndarray) -> np.ndarray:
    """Returns [n, rows, columns / 2, channels]: what an image and its mirror image share.

    A linear model of them gives an image and its mirror image one answer, and has half the weights,
    and so half the noise. The transform keeps every fourth column, so that this is nearly, not
    quite, the transform of the mirror image.
    """
    channels = mirrored(x.shape[-1])
    half = x.shape[2] // 2
    result = np.empty((*x.shape[:2], half, x.shape[-1]), x.dtype)
    for start in range(0, len(x), 1000):
        batch = x[start : start + 1000].astype("float32")
        both = batch + batch[:, :, ::-1][..., channels]
        result[start : start + 1000] = both[:, :, :half] / math.sqrt(2)
    return result


def weighted(x: np.ndarray, orders: Sequence[float], color: float) -> np.ndarray:
    """Returns channels times public constants, whose mean square over all of them is one.

    Args:
        x: Features [..., channels].
        orders: For averages, for wavelets, and for pairs of wavelets.
        color: For all channels of the second and third color, besides.
    """
    weights = order_weights(orders, color, x.shape[-1] // sum(_counts()))
    return in_batches(lambda batch: batch * weights, x)


def order_weights(orders: Sequence[float], color: float, colors: int) -> np.ndarray:
    """Returns the constants of `weighted`, float32 [channels]."""
    of_one = np.repeat(orders, _counts())
    weights = np.concatenate([of_one] + [color * of_one] * (colors - 1))
    return (weights / np.sqrt(np.mean(weights**2))).astype("float32")


def data_normalized(
    x_train: np.ndarray,
    x_test: np.ndarray,
    scale: np.ndarray,
    ledger: tfdp.PrivacyLedger,
    noise_multiplier: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns images less the mean of every channel, over its deviation, both noised and charged.

    A record is an image's mean and mean square of every channel. Channels are scaled by public
    constants first, so that one size of noise suits all of these numbers.
    """

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


def sizes(channels: int) -> np.ndarray:
    """Returns about how large channels of scattering are: smaller the more wavelets there are."""
    of_one = np.repeat([1 / 4, 1 / 32, 1 / 256], _counts()).astype("float32")
    return np.tile(of_one, channels // len(of_one))


def _counts() -> list[int]:
    """Returns how many channels are averages, of one wavelet, and of two."""
    return [1, SCALES * ANGLES, ANGLES**2 * SCALES * (SCALES - 1) // 2]
