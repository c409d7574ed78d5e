"""Products and outer products are what they say, in every form, on records by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.forms.products import Outer, Product, gram_is_cheaper, matrix_gradient


def test_outer_product_by_hand():
    form = matrix_gradient(tf.constant([[3.0, 4.0]]), tf.constant([[1.0, 2.0]]))
    assert isinstance(form, Outer)
    # |(3, 4)|^2 |(1, 2)|^2 = 25 * 5.
    np.testing.assert_allclose(form.squared_norms(), [125.0], rtol=1e-5)
    np.testing.assert_allclose(form.explicit(), [[[3.0, 6.0], [4.0, 8.0]]])
    np.testing.assert_allclose(form.weighted_sum(tf.constant([0.5])), [[1.5, 3.0], [2.0, 4.0]])


@pytest.mark.parametrize("gram", [False, True])
def test_positions_add_up_before_the_norm(gram):
    # Two positions with the gradients 1 and 2 of one number: (1 + 2)^2 = 9, not 1 + 4.
    left = tf.ones([1, 2, 1])
    form = matrix_gradient(left, tf.constant([[[1.0], [2.0]]]), gram)
    assert isinstance(form, Product)
    np.testing.assert_allclose(form.squared_norms(), [9.0], rtol=1e-5)
    np.testing.assert_allclose(form.explicit(), [[[3.0]]])
    # And where they cancel, nothing is left.
    form = matrix_gradient(left, tf.constant([[[1.0], [-1.0]]]), gram)
    assert 0.0 <= form.squared_norms()[0] < 1e-4


def test_outer_product_is_a_product_of_one_position():
    rng = np.random.default_rng(0)
    left, right = (tf.constant(rng.normal(size=(3, k))) for k in (4, 5))
    outer = Outer(left, right)
    product = outer.as_product()
    np.testing.assert_allclose(product.explicit(), outer.explicit(), rtol=1e-12)
    np.testing.assert_allclose(product.squared_norms(), outer.squared_norms(), rtol=1e-9)


def test_gram_matrices_are_for_few_positions_and_large_matrices():
    assert gram_is_cheaper(2, 1000, 1000)
    assert not gram_is_cheaper(10_000, 4, 4)
