"""Norms, groups and factors by hand, and what is not finite."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.query.norm_factors import clip_factors, group_norms, scale, squared_norms


def test_norms_of_a_record_and_of_a_batch():
    leaf = tf.constant([[3.0, 4.0], [0.0, 2.0]])
    # 9 + 16 + 4 = 29 together; 25 and 4 by record.
    np.testing.assert_allclose(squared_norms([leaf], batched=False)[0], 29.0, rtol=1e-6)
    np.testing.assert_allclose(squared_norms([leaf], batched=True)[0], [25.0, 4.0], rtol=1e-6)


def test_norms_are_never_too_small():
    values = np.random.default_rng(0).normal(size=(50, 1000)).astype("float32")
    exact = np.sum(np.square(values, dtype=np.float64), 1)
    found = squared_norms([tf.constant(values)], batched=True)[0].numpy().astype(np.float64)
    assert (found >= exact).all()
    np.testing.assert_allclose(found, exact, rtol=1e-3)


def test_groups_add_their_squares():
    squares = [tf.constant(9.0), tf.constant(16.0), tf.constant(4.0)]
    # Groups 0, 0 and 1: sqrt(9 + 16) and sqrt(4); nothing is in group 2.
    found = group_norms(squares, [0, 0, 1], 3)
    np.testing.assert_allclose(found, [5.0, 2.0, 0.0], rtol=1e-6, atol=1e-18)


def test_factors_by_hand():
    norms = tf.constant([0.5, 2.0, 8.0, 0.0])
    np.testing.assert_allclose(clip_factors(1.0, norms), [1.0, 0.5, 0.125, 1.0], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_norm_that_is_not_finite_has_the_factor_zero(bad):
    assert clip_factors(1.0, tf.constant([bad])).numpy() == [0.0]
    # And zero times whatever stands there is zero.
    np.testing.assert_array_equal(scale(tf.constant([bad, 1.0]), tf.constant(0.0)), [0.0, 0.0])


def test_square_that_overflows_is_not_finite():
    (square,) = squared_norms([tf.constant([2e19])], batched=False)
    assert not np.isfinite(square)
