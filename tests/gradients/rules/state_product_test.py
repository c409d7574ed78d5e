"""Products of states with kernels, and the way back, against TensorFlow's own gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.rules.state_product import state_product

KERNELS = {"matrix": (2, 6), "one": (3, 2, 6), "two": (2, 3, 2, 6), "three": (2, 1, 3, 2, 6)}


@pytest.mark.parametrize("dropping", [False, True])
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_back_is_the_gradient(name, dropping):
    random = np.random.default_rng(0)
    kernel = tf.constant(random.normal(size=KERNELS[name]))
    state_shape = [4, *[3, 4, 2][: kernel.shape.rank - 2], 2]
    state = tf.constant(random.normal(size=state_shape))
    drop_shape = [4, 3, *state_shape[1:]]
    dropped = tf.constant(random.integers(0, 3, drop_shape).astype(float)) if dropping else None
    product = state_product(kernel, dropped)
    with tf.GradientTape() as tape:
        tape.watch(state)
        result = product.of(state)
    assert result.shape == [*state_shape[:-1], product.width] == [*state_shape[:-1], 6]
    gradient = tf.constant(random.normal(size=result.shape))
    expected = tape.gradient(result, state, output_gradients=gradient)
    np.testing.assert_allclose(product.back(gradient), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_part_drops_on_its_own(name):
    random = np.random.default_rng(0)
    kernel = tf.constant(random.normal(size=KERNELS[name]))
    state = tf.constant(random.normal(size=[4, *[3, 4, 2][: kernel.shape.rank - 2], 2]))
    dropped = tf.constant(random.integers(0, 3, [4, 3, *state.shape[1:]]).astype(float))
    parts = [
        state_product(part).of(state * dropped[:, i])
        for i, part in enumerate(tf.split(kernel, 3, -1))
    ]
    actual = state_product(kernel, dropped).of(state)
    np.testing.assert_allclose(actual, tf.concat(parts, -1), rtol=1e-10, atol=1e-12)
