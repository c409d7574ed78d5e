"""Products and outer products are what they say, in every form, on records by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.numerics.exact import long, that_vanish
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(12))
def test_scaled_outer_products_have_no_less_than_their_norms(dtype, seed):
    rng = np.random.default_rng(seed)
    p, q = rng.integers(1, 300, 2)
    left, right = (
        (rng.normal(size=(4, k)) * 10.0 ** rng.uniform(-37, 30, (4, 1))).astype(dtype)
        for k in (p, q)
    )
    scales = (10.0 ** rng.uniform(-4, 3, (p, q))).astype(dtype)
    form = Outer(tf.constant(left), tf.constant(right)).scaled(tf.constant(scales))
    wide = [x.astype(np.longdouble) for x in (left, right, scales)]
    exact = wide[0][:, :, None] * wide[1][:, None, :] * wide[2]
    squares = np.sum(exact**2, axis=(1, 2))
    fits = (squares < np.finfo(dtype).max / 10) & (squares > 1e3 * np.finfo(dtype).tiny)
    found = form.squared_norms().numpy()
    assert np.all(found >= squares)  # Infinity where the square is too large.
    np.testing.assert_allclose(found[fits], squares[fits].astype(dtype), rtol=1e-3)
    factors = np.array([1.0, 0.5, 0.0, 2.0], dtype)
    total = np.tensordot(factors, exact, 1)
    largest = np.abs(exact).max()
    if largest < 1e30:
        np.testing.assert_allclose(
            form.weighted_sum(tf.constant(factors)), total, rtol=1e-4, atol=1e-5 * float(largest)
        )
        np.testing.assert_allclose(
            form.explicit(), exact.astype(dtype), rtol=1e-5, atol=np.finfo(dtype).tiny
        )


def test_scaled_outer_products_add_up_in_segments():
    rng = np.random.default_rng(0)
    left, right, scales = (rng.uniform(1, 2, s) for s in ((4, 3), (4, 2), (3, 2)))
    form = Outer(tf.constant(left), tf.constant(right)).scaled(tf.constant(scales))
    mask, ids = tf.constant([True, True, True, False]), tf.constant([0, 1, 0, 1])
    each = left[:, :, None] * right[:, None, :] * scales
    expected = [np.sum((each[0] + each[2]) ** 2), np.sum(each[1] ** 2)]
    np.testing.assert_allclose(form.segment_squared_norms(mask, ids, 2), expected, rtol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scaled_outer_products_that_are_not_finite_have_no_finite_norm(bad):
    left = tf.constant([[1.0, bad], [1.0, 1.0], [1.0, 2.0]])
    right = tf.constant([[0.0], [bad], [3.0]])
    norms = Outer(left, right).scaled(tf.ones([2, 1])).squared_norms()
    np.testing.assert_array_equal(tf.math.is_finite(norms), [False, False, True])


@pytest.mark.parametrize("gram", [False, True])
def test_groups_are_weighted_sums_of_records(gram):
    rng = np.random.default_rng(4)
    left, right = rng.normal(size=(6, 2, 4, 3)), rng.normal(size=(6, 2, 4, 5))
    factors = np.array([0.5, 0.5, 0.0, 1.0, 2.0, 1.0])
    records = Product(tf.constant(left), tf.constant(right), [2, 3, 5], gram=gram)
    grouped = records.grouped(tf.constant(factors), 3)
    each = np.einsum("n,nhtp,nhtq->nhpq", factors, left, right)
    expected = each.reshape(2, 3, 2, 3, 5).sum(1)
    np.testing.assert_allclose(grouped.explicit(), expected, rtol=1e-12)
    norms = np.square(expected).sum((1, 2, 3))
    np.testing.assert_allclose(grouped.squared_norms(), norms, rtol=1e-9)


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("h", [1, 2, 3])
def test_norms_are_of_all_that_input_and_output_share(h, gram):
    rng = np.random.default_rng(7)
    left, right = rng.normal(size=(4, h, 6, 3)), rng.normal(size=(4, h, 6, 5))
    form = Product(tf.constant(left), tf.constant(right), [h, 3, 5], gram=gram)
    expected = np.square(np.einsum("nhtp,nhtq->nhpq", left, right)).sum((1, 2, 3))
    np.testing.assert_allclose(form.squared_norms(), expected, rtol=1e-9)


def test_norms_of_segments_hold_what_inner_products_lose():
    rows = np.full([3, 8000], 2.0**-12.3, np.float32)
    rows[:, 0] = 1
    mask, ids = tf.ones([3], tf.bool), tf.constant([0, 1, 0])
    found = Outer(tf.constant(rows), tf.constant(rows)).segment_squared_norms(mask, ids, 2)
    square = np.sum(rows[0].astype(np.float64) ** 2) ** 2
    assert np.all(found.numpy() >= [4 * square, square])
    np.testing.assert_allclose(found, [4 * square, square], rtol=1e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("h, p, q", [(1, 700, 3), (3, 5, 40)])
def test_magnitudes_are_no_less_than_sums_over_positions(gram, h, p, q, dtype):
    rng = np.random.default_rng(5)
    left, right = (
        (rng.normal(size=(4, h, 6, k)) * 10.0 ** rng.integers(-9, 9, (4, h, 6, 1))).astype(dtype)
        for k in (p, q)
    )
    left[1, 0, 2] = 0
    form = Product(tf.constant(left), tf.constant(right), [h, p, q], gram=gram)
    norms = [np.sqrt(np.sum(x.astype(np.longdouble) ** 2, -1)) for x in (left, right)]
    exact = np.sum(norms[0] * norms[1], (1, 2))
    assert np.all(form.magnitudes().numpy() >= exact)
    if gram:
        np.testing.assert_allclose(form.magnitudes(), exact.astype(dtype), rtol=1e-3)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_numbers_that_vanish_beside_others_count(jit_compile):
    @tf.function(autograph=False, jit_compile=jit_compile)
    def of_blocks(left):  # [n, h], of one position each.
        form = Product(left[..., None, None], tf.ones([3, size, 1, 1]), [size, 1, 1], gram=True)
        return form.squared_norms(), form.magnitudes()

    @tf.function(autograph=False, jit_compile=jit_compile)
    def scaled(right):
        return Outer(tf.ones([3, 1]), right).scaled(tf.ones([1, size])).squared_norms()

    size = 16384
    sums = np.stack(that_vanish(size))
    roots = np.sqrt(sums)
    exact = np.sum(long(roots) ** 2, 1)
    for squares in (of_blocks(roots)[0], scaled(roots)):
        assert (squares >= exact).numpy().all() and (squares <= exact * (1 + 1e-4)).numpy().all()
    assert (of_blocks(sums)[1].numpy() >= np.sum(long(sums), 1)).all()


def test_magnitudes_hold_what_inner_products_lose():
    # A sum of squares that begins with 1 loses what is added to it by less than half a unit.
    left = np.full([2, 1, 6, 8000], 2.0**-12.3, np.float32)
    left[..., 0] = 1
    right = np.ones([2, 1, 6, 3], np.float32)
    exact = 6 * math.sqrt(3 * np.sum(left[0, 0, 0].astype(np.float64) ** 2))
    form = Product(tf.constant(left), tf.constant(right), [8000, 3], gram=True)
    assert np.all(form.magnitudes().numpy() >= exact)


def _of_vocabulary(dtype):
    """Returns factors of a table's gradient: few positions, and rows of a large vocabulary."""
    rng = np.random.default_rng(6)
    return (rng.normal(size=(3, 1, 64, k)).astype(dtype) for k in (1024, 8))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_sum_over_many_rows_by_hand(jit_compile):
    left, right = _of_vocabulary(np.float64)
    factors = np.array([0.5, 0.0, 2.0])

    @tf.function(jit_compile=jit_compile)
    def total(left, right):
        form = Product(left, right, [1024, 8], gram=True)
        return form.weighted_sum(tf.constant(factors))

    expected = np.einsum("n,nhtp,nhtq->pq", factors, left, right)
    np.testing.assert_allclose(total(left, right), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_record_with_large_factors_that_are_not_finite_adds_nothing(bad, jit_compile):
    left, right = _of_vocabulary(np.float32)
    left[1, 0, 63, 1023] = bad  # The square of 1e30 is not finite.

    @tf.function(jit_compile=jit_compile)
    def results(left, right):
        form = Product(left, right, [1024, 8], gram=True)
        return form.squared_norms(), form.weighted_sum(tf.constant([0.5, 0.0, 2.0]))

    norms, total = results(left, right)
    assert np.isfinite(norms.numpy()).tolist() == [True, False, True]
    left[1] = 0
    np.testing.assert_allclose(total, results(left, right)[1], rtol=1e-5, atol=1e-4)
