"""Random sources: keyed by the operating system, or seeded for tests."""

import abc
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.noise import bits, laplace, staging
from tfdp.noise.discrete_gaussian import DiscreteGaussian
from tfdp.noise.host import HostGenerator
from tfdp.noise.host_calls import on_host

# What samples are drawn by.
_DRAWS = ("random", "integers", "binomial", "choice", "permutation")


class RandomSource(abc.ABC):
    """Draws that a query adds to a sum.

    Every call returns numbers that no other call returns: in a graph that is run again, in a graph
    that is traced again, and for the next variable of the same shape.

    Attributes:
        seeded: True where the draws can be repeated by whoever knows the seed. Events of queries
            that use such a source say so, and accountants price them as no noise.
    """

    seeded: bool

    @abc.abstractmethod
    def normal(self, shape: Any, dtype: tf.DType) -> tf.Tensor:
        """Returns standard normal draws of this shape, in float32 or float64."""

    @abc.abstractmethod
    def laplace(self, shape: Any, dtype: tf.DType) -> tf.Tensor:
        """Returns draws of this shape with density exp(-|x|) / 2, in float32 or float64."""

    @abc.abstractmethod
    def integers(self, shape: Any, maximum: int) -> tf.Tensor:
        """Returns int32 draws, uniform over 0 .. maximum - 1."""

    @abc.abstractmethod
    def discrete_gaussian(self, shape: Any, variance: Fraction) -> tf.Tensor:
        """Returns int64 draws with P(x) proportional to exp(-x^2 / (2 variance)), exactly."""

    @abc.abstractmethod
    def on_host(
        self, function: Callable[..., Any], inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """Returns what a function of random bits and arrays computes on the host.

        Args:
            function: Of a function that overwrites arrays of integers with random bits, and of the
                values of `inputs`. It is called whenever this point is reached, and returns a list
                of arrays.
            inputs: Tensors.
            types: Of what it returns.
        """


class _HostSource(RandomSource):
    """Draws from bits that a function fills in on the host.

    In a graph the host is called each time the graph runs. What XLA compiles cannot call it:
    `tfdp.noise.staged` draws outside of it.
    """

    def __init__(self, fill: bits.Fill):
        self._fill = fill

    def normal(self, shape: Any, dtype: tf.DType) -> tf.Tensor:
        shape, size = _shape_and_size(shape)
        return staging.normal(self._fill, shape, size, dtype)

    def laplace(self, shape: Any, dtype: tf.DType) -> tf.Tensor:
        shape, size = _shape_and_size(shape)
        words = tf.reshape(staging.uniform(self._fill, laplace.WORDS * size), [laplace.WORDS, -1])
        return tf.reshape(laplace.laplace_from_words(words, dtype), shape)

    def integers(self, shape: Any, maximum: int) -> tf.Tensor:
        if not 1 <= maximum <= 2**31 - 1:
            raise ValueError(
                f"maximum must be in 1 .. 2^31 - 1. Received: maximum={maximum}. Draw several "
                "integers for a larger range."
            )
        shape, size = _shape_and_size(shape)

        def write(words: np.ndarray) -> None:
            words[:] = HostGenerator(self._fill).integers(maximum, size=words.size)

        return tf.reshape(tf.bitcast(staging.draw(write, size), tf.int32), shape)

    def discrete_gaussian(self, shape: Any, variance: Fraction) -> tf.Tensor:
        distribution = DiscreteGaussian(variance)
        shape, size = _shape_and_size(shape)

        def write(words: np.ndarray) -> None:
            words.view(np.int64)[:] = distribution.draw(self._fill, words.size // 2)

        words = tf.reshape(staging.draw(write, 2 * size), [-1, 2])
        return tf.reshape(tf.bitcast(words, tf.int64), shape)

    def on_host(
        self, function: Callable[..., Any], inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        def call(*arrays):
            return function(bits.Buffered(self._fill), *arrays)

        if tf.executing_eagerly():
            results = call(*map(np.asarray, inputs))
            return [tf.constant(r, dtype) for r, dtype in zip(results, types, strict=True)]
        return on_host(call, inputs, types)


class SystemRandomSource(_HostSource):
    """AES-256 in counter mode, under a new 256-bit key from the operating system for every draw.

    Where TensorFlow sees a GPU, words of large normal and Laplace draws are expanded there from a
    key that is drawn like that, by ChaCha20.

    Guarantees:
        Whoever predicts a draw, or distinguishes it from a uniform one, breaks AES-256, ChaCha20 or
        the operating system's generator. There is no state, so nothing repeats: not when a graph
        runs or is traced again, not after a resume, not in another thread, replica or process,
        forked or not. On the host, a key is kept in memory only as long as its draw lasts.
    """

    seeded = False

    def __init__(self):
        super().__init__(bits.system_fill)


class SeededRandomSource(_HostSource):
    """Repeatable draws for tests. Not private: events of queries that use it say `seeded`.

    Draw number i is AES-256 in counter mode, under a key hashed from the seed and i. Where there is
    a GPU, large draws are others than where there is none.

    Args:
        seed: Any integer.

    Raises:
        TypeError: `seed` is not an integer.
    """

    seeded = True

    def __init__(self, seed: int):
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be an integer. Received: seed={seed!r}.")
        super().__init__(bits.SeededFill(seed))


_SYSTEM = SystemRandomSource()


def system_random_source() -> SystemRandomSource:
    """Returns the source that queries use by default; it has no state."""
    return _SYSTEM


def host_generator(generator: Any = None) -> Any:
    """Returns a generator for drawing samples: one keyed by the operating system at every draw,
    unless another one is given.

    Args:
        generator: A `HostGenerator`, or NumPy's `Generator`, whose draws can be repeated.

    Raises:
        TypeError: it does not have their methods.
    """
    if generator is None:
        return HostGenerator()
    if not all(callable(getattr(generator, name, None)) for name in _DRAWS):
        raise TypeError(
            "generator must be a numpy.random.Generator or a tfdp.noise.HostGenerator. Received: "
            f"{type(generator).__name__}."
        )
    return generator


def _shape_and_size(shape: Any) -> tuple[Any, Any]:
    """Returns a shape and its number of elements, as integers where they are known."""
    if isinstance(shape, tf.TensorShape) and shape.is_fully_defined():
        return shape.as_list(), shape.num_elements()
    if not tf.is_tensor(shape):
        shape = tf.convert_to_tensor(shape, tf.int32)
    static = tf.get_static_value(shape)
    if static is None:
        return shape, tf.reduce_prod(tf.cast(shape, tf.int64))
    return static.tolist(), math.prod(static.tolist())
