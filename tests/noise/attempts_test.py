"""What is refused inside of TensorFlow's maps leaves nothing behind."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.noise.stages import draw_normal
from tfdp.gradients.mapping import map_in_turn
from tfdp.keras import DPOptimizer, make_private
from tfdp.noise import staged
from tfdp.noise.attempts import attempt
from tfdp.query import GaussianSumQuery

SPEC = tf.TensorSpec([], tf.float32)


def caching_device():
    return tf.compat.v1.get_variable_scope().caching_device


def refuses(*_):
    raise ValueError("no such layer")


MAPS = {
    "map_fn": lambda: tf.map_fn(refuses, tf.zeros([2])),
    "scan": lambda: tf.scan(refuses, tf.zeros([2])),
    "foldl": lambda: tf.foldl(refuses, tf.zeros([2])),
    "foldr": lambda: tf.foldr(refuses, tf.zeros([2])),
}


@pytest.mark.parametrize("name", MAPS)
def test_attempts_put_back_what_tensorflow_leaves(name):
    with attempt():
        with pytest.raises(ValueError, match="no such layer"):
            tf.function(MAPS[name])()
        assert caching_device() is not None
    assert caching_device() is None


@pytest.mark.parametrize("eagerly", [True, False])
def test_maps_as_tensorflow_does(eagerly):
    call = (lambda f: f) if eagerly else tf.function
    doubled = call(lambda x: map_in_turn(lambda row: 2 * row, x, SPEC))(tf.constant([1.0, 3.0]))
    assert doubled.numpy().tolist() == [2, 6]


def test_a_refusal_leaves_strategies_usable():
    with pytest.raises(ValueError, match="no such layer"):
        tf.function(lambda x: map_in_turn(refuses, x, SPEC))(tf.zeros([2]))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        pass


def test_noise_that_cannot_be_staged_leaves_strategies_usable():
    rows = tf.zeros([4, 3], tf.float64)
    tf.function(lambda: staged(lambda: tf.map_fn(lambda x: x + draw_normal(3), rows)))()
    assert caching_device() is None


class Halved(keras.layers.Layer):
    """Halves record by record, and cannot be known to the book-keeping engine."""

    def __init__(self):
        super().__init__()
        self.factor = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return tf.map_fn(lambda row: row * self.factor / 2, x)


def test_layers_that_map_leave_strategies_usable():
    model = keras.Sequential([keras.layers.Input((3,)), Halved(), keras.layers.Dense(1)])
    private = make_private(model)
    query = GaussianSumQuery(l2_norm_clip=1.0, stddev=1.0)
    private.compile(DPOptimizer(keras.optimizers.SGD(0.1), query), loss="mse")
    private.fit(np.zeros([4, 3], np.float32), np.zeros([4, 1], np.float32), 2, verbose=0)
    assert caching_device() is None
