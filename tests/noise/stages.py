"""What tests of staged noise share."""

import numpy as np
import tensorflow as tf

from tfdp.noise import SeededRandomSource, SystemRandomSource

# A draw of at least so many numbers is made on its own, others together.
LARGE = 2**18
# Of both kinds; even and odd, also rows.
SHAPES = [(3, 4), (5,), (), (0, 2), (LARGE - 1,), (LARGE,), (601, 503), (7, 11)]
SOURCE = SystemRandomSource()


class Counting(SeededRandomSource):
    """A seeded source that keeps a list of the sizes of its draws on the host."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.draws = []
        fill = self._fill

        def counted(words):
            self.draws.append(words.size)
            fill(words)

        self._fill = counted


def assert_all_differ(*draws):
    values = np.concatenate([np.ravel(draw) for draw in draws])
    assert len(np.unique(values)) == values.size


def draw_normal(*shape):
    # In float64, where no two draws are equal by chance.
    return SOURCE.normal(shape, tf.float64)
