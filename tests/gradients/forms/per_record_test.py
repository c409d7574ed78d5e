"""A variable that is used twice: its norm has the product of both uses."""

import numpy as np
import pytest
import tensorflow as tf

from tests.numerics.exact import long, that_vanish
from tfdp.gradients.forms.per_record import Explicit, Sum
from tfdp.gradients.forms.products import Product
from tfdp.gradients.forms.rows import Rows
from tfdp.numerics import rounding


@pytest.mark.parametrize("sign", [1.0, -0.5])
def test_uses_of_different_form_add_up(sign):
    # The same gradient twice, sign times the second: (1 + sign)^2 of one, not 1 + sign^2.
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 3, 8, 20))
    one = np.einsum("ntp,ntq->npq", left, right)
    ids = tf.constant(np.stack([np.arange(20)] * 3))
    forms = [
        Product(tf.constant(left[:, None]), tf.constant(right[:, None]), [20, 20], gram=True),
        Rows(ids, tf.constant(sign * one), 20),
    ]
    expected = (1 + sign) ** 2 * np.sum(one**2, (1, 2))
    for parts in (forms, forms[::-1], [forms[0], Explicit(tf.constant(sign * one))]):
        np.testing.assert_allclose(Sum(parts).squared_norms(), expected, rtol=1e-9)
        assert not np.allclose(expected, sum(part.squared_norms() for part in parts), rtol=0.1)


def test_uses_that_cancel_count_in_full_where_products_are_rounded(monkeypatch):
    """What is left of rounded products is more than their inner product says."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 3, 8, 20)).astype(np.float32)
    one = np.einsum("ntp,ntq->npq", left, right)
    product = Product(tf.constant(left[:, None]), tf.constant(right[:, None]), [20, 20], gram=True)
    form = Sum([product, Explicit(tf.constant(-one))])
    squares = np.sum(one**2, (1, 2))
    assert np.all(form.squared_norms() < 0.01 * squares)
    monkeypatch.setattr(rounding, "products_are_rounded", lambda dtype: True)
    assert np.all(form.squared_norms() >= 4 * squares * (1 - 1e-5))


def test_groups_of_uses_of_different_form_add_up():
    rng = np.random.default_rng(0)
    left, right, rows = (tf.constant(rng.normal(size=(4, 3, k))) for k in (5, 2, 2))
    forms = [
        Product(left[:, None], right[:, None], [5, 2], gram=True),
        Rows(tf.constant(rng.integers(0, 5, (4, 3))), rows, 5),
    ]
    each = Sum(forms).explicit().numpy()
    grouped, expected = Sum(forms).grouped(None, 2), each[::2] + each[1::2]
    np.testing.assert_allclose(grouped.explicit(), expected, rtol=1e-12)
    squares = np.sum(expected**2, (1, 2))
    np.testing.assert_allclose(grouped.squared_norms(), squares, rtol=1e-9)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("shape", [(5003,), (3, 3, 64, 64)])
def test_inner_products_are_never_too_small(shape, jit_compile):
    @tf.function(autograph=False, jit_compile=jit_compile)
    def inner(gradients):
        form = Explicit(gradients)
        return form.inner(form)

    vectors = np.sqrt(that_vanish(np.prod(shape)))
    exact = np.sum(long(vectors) ** 2, 1)
    assert (inner(vectors.reshape([-1, *shape])).numpy() >= exact).all()


def test_inner_products_hold_what_sums_over_positions_lose():
    # A sum of products that begins with 1 loses what is added to it by less than half a unit.
    factors = np.full([2, 1, 8000, 1], 2.0**-12.3, np.float32)
    factors[:, 0, 0] = 1
    exact = np.sum(factors[0].astype(np.float64) ** 2)
    form = Product(tf.constant(factors), tf.constant(factors), [1, 1])
    for inner in (
        form.inner(Explicit(tf.ones([2, 1, 1]))),
        Explicit(tf.ones([2, 1, 1])).inner(form),
    ):
        assert np.all(inner.numpy() >= exact)
        np.testing.assert_allclose(inner, exact, rtol=1e-2)
