"""A random convolution of scattering features, shaped by images that nobody took.

    z = P (s - m),   f = mean over a cell of max(0, W z / |z|)

for the features s of 3 x 3 neighbors, their mean m and principal components P over made images, and
random W. A linear model of f approximates one of a kernel of patches (Rahimi and Recht 2007; arc-
cosine kernels, Cho and Saul 2009), and so learns what a convolution would. Made images are "dead
leaves": shapes that hide each other (Lee, Mumford and Huang 2001; as a prior, Baradad et al. 2021,
arXiv:2106.05963). No image of the data decides anything here: it costs no privacy.
"""

import numpy as np
import tensorflow as tf
from scattering_features import in_batches, mirrored, order_weights, scattered

# How many images are made for a random convolution.
_MADE = 2000


def dead_leaves(count: int, side: int, channels: int, seed: int = 0) -> np.ndarray:
    """Returns uint8 [count, side, side, channels]: ellipses and boxes over each other.

    Radii have a heavy tail, edges are soft or sharp, and colors differ less than brightness does.
    """
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side].astype("float32")[:, None]

    def colors() -> np.ndarray:
        brightness = rng.normal(0.48, 0.22, (count, 1))
        differences = rng.normal(0, 0.09, (count, channels))
        differences -= differences.mean(axis=1, keepdims=True)
        return (brightness + differences)[:, None, None]

    def each(numbers: np.ndarray) -> np.ndarray:
        return numbers[:, None, None]

    images = np.broadcast_to(colors(), (count, side, side, channels))
    for _ in range(60):
        radius = np.minimum(2 / rng.random(count) ** 0.6, 0.75 * side)
        place, turn = rng.uniform(-4, side + 4, (2, count)), rng.uniform(0, np.pi, count)
        down, right = rows - each(place[0]), columns - each(place[1])
        along = down * each(np.cos(turn)) + right * each(np.sin(turn))
        across = right * each(np.cos(turn)) - down * each(np.sin(turn))
        across = across / each(rng.uniform(0.4, 1, count))
        box = each(rng.random(count) < 0.5)
        far = np.where(box, np.maximum(abs(along), abs(across)), np.hypot(along, across))
        inside = 0.5 - (far - each(radius)) / each(rng.uniform(0.7, 3, count))
        inside = np.clip(inside, 0, 1)[..., None]
        shade = (along * each(rng.normal(0, 0.01, count)))[..., None]
        images = images + inside * (colors() + shade - images)
    images = images + rng.normal(0, 0.02, images.shape)
    return (255 * np.clip(images, 0, 1)).astype("uint8")


class RandomFeatures:
    """The random convolution, of features [n, rows, columns, channels] of square images.

    Args:
        side: Of the images.
        colors: Channels of the images.
        filters: Rows of W.
        orders: Weights of averages, of wavelets, and of pairs of wavelets.
        color: Weight of all features of the second and third color, besides.
        cells: Rows and columns of cells that f is averaged over.
        kept: Principal components. Each is divided by the fourth root of its deviation.
        mirror: Whether f is the sum of that of an image and that of its mirror image.
        seed: Of the made images and of W. It is public.
    """

    def __init__(
        self,
        side: int,
        colors: int,
        filters: int,
        *,
        orders: tuple[float, float, float] = (2.0, 1.0, 0.5),
        color: float = 0.5,
        cells: int = 2,
        kept: int = 64,
        mirror: bool = False,
        seed: int = 0,
    ):
        made = dead_leaves(_MADE, side, colors, seed)
        made = scattered(made, opponent=colors == 3).astype("float32")
        rows = made.reshape(-1, made.shape[-1])
        mean, deviation = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-5)
        scale = order_weights(orders, color, colors) / deviation
        scaled = (rows - mean) * scale
        variances, directions = np.linalg.eigh(scaled.T @ scaled / len(scaled))
        largest = np.argsort(variances)[::-1][:kept]
        directions = directions[:, largest] * variances[largest] ** -0.125
        size = np.sqrt(np.mean((scaled @ directions) ** 2))
        self._projection = tf.constant(scale[:, None] * directions / size, tf.float32)
        self._offset = tf.linalg.matvec(self._projection, mean, transpose_a=True)
        weights = np.random.default_rng(seed).normal(size=(3, 3, kept, filters))
        self._weights = tf.constant(weights / np.sqrt(9 * kept), tf.float32)
        self._cells = tf.constant(_cells(made.shape[1] - 2, cells), tf.float32)
        self._mirror = mirrored(made.shape[-1]) if mirror else None
        found = np.concatenate([self._batch(made[i : i + 500]) for i in range(0, len(made), 500)])
        self._mean = found.mean(axis=(0, 1, 2))
        self._deviation = found.std(axis=(0, 1, 2))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Returns float16 [n, cells, cells, filters], of mean 0 and variance 1 on made images."""
        cells = len(self._cells)
        result = np.empty((len(x), cells, cells, len(self._mean)), "float16")
        return in_batches(
            lambda batch: (self._batch(batch) - self._mean) / self._deviation, x, result
        )

    def _batch(self, x: np.ndarray) -> np.ndarray:
        found = self._convolved(tf.constant(x))
        if self._mirror is not None:
            found += self._convolved(tf.constant(x[:, :, ::-1][..., self._mirror]))
        return found.numpy()

    @tf.function(reduce_retracing=True)
    def _convolved(self, x: tf.Tensor) -> tf.Tensor:
        projected = tf.tensordot(x, self._projection, 1) - self._offset
        square = tf.reduce_mean(projected**2, axis=-1, keepdims=True)
        norms = tf.sqrt(tf.nn.avg_pool2d(square, 3, 1, "VALID") + 0.1)
        found = tf.nn.relu(tf.nn.conv2d(projected, self._weights, 1, "VALID") / norms)
        return tf.einsum("rh,nhwf,sw->nrsf", self._cells, found, self._cells)


def _cells(side: int, cells: int) -> np.ndarray:
    """Returns [cells, side]: averages over as many stretches, which overlap where need be."""
    result = np.zeros((cells, side))
    for i in range(cells):
        start, end = i * side // cells, -(-(i + 1) * side // cells)
        result[i, start:end] = 1 / (end - start)
    return result
