"""Random words that are asked for one after another, and drawn together."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdp.noise import chacha, gaussian, memory

Write = Callable[[np.ndarray], None]  # Overwrites a uint32 array.

# Parts of an array of words begin at multiples of so many.
_ALIGNED = 16


@dataclasses.dataclass
class Requests:
    """Draws that stand one after another in an array: (writer of words, which words)."""

    draws: list[tuple[Write, slice]] = dataclasses.field(default_factory=list)
    size: int = 0

    def add(self, write: Write, count: int) -> slice:
        # TensorFlow copies a part of an array that begins elsewhere.
        start = self.size + -self.size % _ALIGNED
        self.size = start + count
        self.draws.append((write, slice(start, self.size)))
        return self.draws[-1][1]

    def write(self) -> np.ndarray:
        """Draws them all."""
        words = memory.words(self.size)
        for write, part in self.draws:
            write(words[part])
        return words


class Keystream:
    """Uniform words for several draws, which a GPU makes from one key.

    Args:
        fill: Writes the key.
    """

    def __init__(self, fill: Write):
        self._fill = fill
        self._words: tf.Tensor | None = None
        self._blocks = 0

    def take(self, count: int, draw: Callable[[Write, int], tf.Tensor]) -> tf.Tensor:
        """Returns words that nobody else gets.

        Args:
            count: How many.
            draw: Returns words, given how they are written and how many they are.

        Raises:
            ValueError: the counter of blocks would end.
        """
        start = chacha.BLOCK_WORDS * self._blocks
        self._blocks += -(-count // chacha.BLOCK_WORDS)
        if self._blocks > chacha.MOST_BLOCKS:
            raise ValueError(
                f"The words of one step are at most {chacha.MOST_BLOCKS} blocks of 64 bytes on a "
                f"GPU, where the counter ends. Received: {self._blocks} blocks. Draw in parts."
            )
        if self._words is None:
            # In a graph this is written when it runs, and the draws of all have been counted.
            request = draw(self._write, chacha.KEY_WORDS + 1)
            # The number of blocks is needed on the host, where it comes from.
            with tf.device("CPU:0"):
                key, blocks = request[:-1], tf.cast(request[-1], tf.int64)
            self._words = chacha.keystream(key, blocks)
        return tf.slice(self._words, [start], [count])

    def _write(self, words: np.ndarray) -> None:
        self._fill(words[:-1])
        words[-1] = self._blocks


class Pool:
    """Normal draws of one dtype that are made together, and the words that they are made of."""

    def __init__(self, dtype: tf.DType):
        self._dtype = dtype
        self._fill: Write | None = None
        self._draws: tf.Tensor | None = None
        self._size = 0

    def take(
        self, fill: Write, size: int, words: tf.Tensor, make: Callable[..., tf.Tensor]
    ) -> tf.Tensor | None:
        """Returns draws that nobody else gets; None where the pool is filled by something else.

        Args:
            fill: Writes the words.
            size: How many draws.
            words: Of the pool.
            make: Returns the draws, given rows of words and a dtype.
        """
        if self._draws is None:
            self._fill = fill
            rows = gaussian.words_per_pair(self._dtype)
            self._draws = make(tf.reshape(words, [rows, -1]), self._dtype)
        if fill != self._fill:
            return None
        self._size += size
        return tf.slice(self._draws, [self._size - size], [size])

    def write(self) -> np.ndarray:
        """Draws the words of the pool."""
        words = Requests()
        if self._fill is not None:
            words.add(self._fill, gaussian.words_per_pair(self._dtype) * ((self._size + 1) // 2))
        return words.write()
