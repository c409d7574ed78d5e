"""Random sources: keyed from the operating system, or seeded for tests."""

import abc
import functools
import os
import secrets
from typing import Any

import numpy as np
import tensorflow as tf


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
    def integers(self, shape: Any, maximum: int) -> tf.Tensor:
        """Returns int32 draws, uniform over 0 .. maximum - 1."""


class _PhiloxSource(RandomSource):
    """Philox 4x32-10 (Salmon et al. 2011) under a counter that lives in a variable and only moves
    forward.
    """

    def __init__(self, key: int):
        self._process = os.getpid()
        # The counter variable must outlive the graph in which the source is first used.
        with tf.init_scope():
            self._generator = tf.random.Generator.from_key_counter(
                key=tf.bitcast(tf.constant(key, tf.uint64), tf.int64),
                counter=tf.zeros([2], tf.int64),
                alg="philox",
            )

    def normal(self, shape, dtype):
        self._check_process()
        return self._generator.normal(shape, dtype=dtype)

    def integers(self, shape, maximum):
        self._check_process()
        return self._generator.uniform(shape, maxval=maximum, dtype=tf.int32)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "This random source was made before the process was forked: it would draw the same "
                "numbers as the parent. Make queries in the process that uses them."
            )


class SystemRandomSource(_PhiloxSource):
    """Draws keyed with 64 bits from the operating system's generator when the source is made.

    The key is held in memory only: it is in no checkpoint and no saved model, and another process
    has another key, so noise is not repeated after a resume. Philox is statistically strong but is
    not a cryptographic generator: an attacker who sees many noise values exactly could in principle
    search for the key.
    """

    seeded = False

    def __init__(self):
        super().__init__(secrets.randbits(64))


class SeededRandomSource(_PhiloxSource):
    """Repeatable draws for tests. Not private: events of queries that use it say `seeded`.

    Args:
        seed: Any integer; 64 bits of it are used.

    Raises:
        TypeError: `seed` is not an integer.
    """

    seeded = True

    def __init__(self, seed: int):
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be an integer. Received: seed={seed!r}.")
        super().__init__(seed % 2**64)


def system_random_source() -> SystemRandomSource:
    """Returns this process's shared source, made at the first call."""
    return _source_of_process(os.getpid())


@functools.cache
def _source_of_process(process: int) -> SystemRandomSource:
    return SystemRandomSource()


def host_generator() -> np.random.Generator:
    """Returns a NumPy generator keyed with 256 bits from the operating system, for drawing
    samples.
    """
    return np.random.Generator(np.random.Philox(secrets.randbits(256)))
