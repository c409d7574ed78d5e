"""Gradients of all examples at once, one by one in order."""

import numpy as np
import tensorflow as tf

from tfdp.gradients.engines.vectorized import vectorized_gradients


def test_every_example_has_its_own_gradient():
    def gradient(leaves):
        (x,) = leaves
        return tf.reduce_sum(x), {"twice": 2.0 * x[0]}, [3.0 * x[0], tf.reduce_sum(x)[None]]

    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    losses, aux, forms = vectorized_gradients(gradient, [x], 2)(x)
    np.testing.assert_allclose(losses, [3.0, 7.0])
    np.testing.assert_allclose(aux["twice"], [[2.0, 4.0], [6.0, 8.0]])
    np.testing.assert_allclose(forms[0].explicit(), [[3.0, 6.0], [9.0, 12.0]])
    np.testing.assert_allclose(forms[1].explicit(), [[3.0], [7.0]])
