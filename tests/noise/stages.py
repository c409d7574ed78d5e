"""What tests of staged noise share."""

import numpy as np
import tensorflow as tf

from tfdp.noise import SeededRandomSource, SystemRandomSource

# Of both kinds: made together with others (below 2^15), and on their own; even and odd, also rows.
SHAPES = [(3, 4), (5,), (), (0, 2), (2**15 - 1,), (2**15,), (301, 333), (7, 11)]
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
