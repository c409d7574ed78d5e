"""tfdp.numerics.norms: norms from Gram matrices are never too small, and hardly too large."""

import numpy as np
import pytest
import tensorflow as tf

from tests.numerics.exact import check_squares, exact_products, magnitude_of
from tfdp.gradients.forms.products import Outer, Product
from tfdp.numerics import norms, rounding

DTYPES = ["float32", "float64"]


def products_that_cancel(rng, t, p, q):
    """Returns left [n, t, p] and right [n, t, q] whose outer products nearly add up to nothing."""
    left = np.stack(
        [
            np.full([t, p], 1.3),
            np.full([t, 1], 1.3) * (1 + 1e-6 * rng.random([t, p])),
            rng.random([t, 1]) * np.ones([t, p]),
            rng.normal(size=[t, p]),
            np.full([t, p], 1.3) * (1 + np.arange(t) % 3)[:, None],
        ]
    )
    signs = np.where(np.arange(t) % 2, -1.0, 1.0)[:, None]
    right = np.stack(
        [
            signs * np.full([t, q], 0.7),
            signs * np.full([t, q], 0.7),
            signs * rng.random([1, q]) / left[2, :, :1],
            signs * (1 + 1e-5 * rng.normal(size=[t, q])),
            signs * np.full([t, q], 0.7) / (1 + np.arange(t) % 3)[:, None],
        ]
    )
    return left, right


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("t, p, q", [(2, 1, 1), (8, 100, 30), (34, 513, 65), (66, 16, 700)])
def test_norms_from_gram_matrices_where_positions_cancel(t, p, q, dtype):
    rng = np.random.default_rng(0)
    left, right = (x.astype(dtype) for x in products_that_cancel(rng, t, p, q))
    product = Product(tf.constant(left[:, None]), tf.constant(right[:, None]), [p, q], gram=True)
    exact = exact_products(left, right)
    check_squares(product.squared_norms(), exact, magnitude_of(left, right))
    assert (product.magnitudes().numpy() * (1 + 1e-6) >= magnitude_of(left, right)).all()


def test_careless_gram_norms_of_such_records_are_too_small():
    rng = np.random.default_rng(0)
    left, right = (x.astype("float32") for x in products_that_cancel(rng, 34, 513, 65))
    grams = [tf.matmul(x, x, transpose_b=True) for x in map(tf.constant, (left, right))]
    squares = tf.reduce_sum(grams[0] * grams[1], [1, 2]).numpy()
    exact = np.linalg.norm(exact_products(left, right).astype(float), axis=(1, 2))
    assert (np.sqrt(np.maximum(squares, 0)) < exact * (1 - 1e-3)).any()


def test_norms_of_ordinary_products_are_hardly_larger():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 8, 16, 128)).astype("float32")
    product = Product(
        tf.constant(left[:, None]), tf.constant(right[:, None]), [128, 128], gram=True
    )
    exact = exact_products(left, right)
    check_squares(product.squared_norms(), exact, magnitude_of(left, right), loosest=5e-5)


@pytest.mark.parametrize("t, p, q", [(1, 784, 1000), (64, 128, 512), (512, 768, 768)])
def test_what_norms_are_enlarged_by_is_all_that_is_wrong_with_them(t, p, q, monkeypatch):
    """Without it, norms of large products are those of the loop to 1e-5, as small ones are with."""
    monkeypatch.setattr(rounding, "_UNIT", dict.fromkeys(rounding._UNIT, 0.0))
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(2, t, k)).astype("float32") for k in (p, q))
    if t == 1:
        product = Outer(tf.constant(left[:, 0]), tf.constant(right[:, 0]))
    else:
        product = Product(
            tf.constant(left[:, None]), tf.constant(right[:, None]), [p, q], gram=True
        )
    exact = np.einsum("ntp,ntq->npq", left.astype(float), right.astype(float))
    norms = np.sqrt(product.squared_norms().numpy().astype(float))
    np.testing.assert_allclose(norms, np.linalg.norm(exact, axis=(1, 2)), rtol=1e-5)


@pytest.mark.parametrize("rows, columns", [(2**14, 1), (1, 2**14), (1, 1)])
def test_gram_norms_of_what_cancels_are_all_that_can_be_wrong(rows, columns):
    """The terms of the docstring, of four positions with |a| = 5 and |b| = 2 that cancel."""
    u = rounding._UNIT[tf.float32]
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    left, right = np.full((1, 4, 4), 25.0), 4.0 * np.outer(signs, signs)[None]
    square = u * (rows * 25.0 * 4.0 + (columns + 8) * 25.0 * 4.0) * 16
    least = (np.sqrt(square) + u * 4 * 5.0 * 2.0) ** 2
    found = norms.squares_from_grams(
        tf.constant(left, tf.float32), tf.constant(right, tf.float32), rows, columns
    )
    assert least * (1 - 1e-6) <= float(found[0]) <= least * (1 + 1e-5 + 8 * u * (rows + columns))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_sums_are_in_float32_at_least(given, kept):
    tensor = tf.constant([1.5, 1 + 2.0**-40], given)
    found = norms.to_accumulate(tensor)
    assert found.dtype == kept
    np.testing.assert_array_equal(tf.cast(found, tf.float64), tf.cast(tensor, tf.float64))
