import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.forms.joined import Joined
from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.forms.products import Outer

SHAPES = [(3,), (), (2, 5), (5000,), (4,)]


def gradients(dtype=tf.float32):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.standard_normal((6, *shape)), dtype) for shape in SHAPES]


def test_sums_are_those_of_the_variables_in_their_order():
    explicit = gradients()
    outer = Outer(tf.ones([6, 2]), tf.ones([6, 3]))
    records = [*map(Explicit, explicit), outer]
    joined = Joined(records, [0] * len(records))
    assert len(joined.records) == 3  # Four small ones, one of 5000 numbers, and the product.
    factors = tf.constant([0.5, 0, 1, 0.25, 2, 1])
    sums = joined.by_variable([record.weighted_sum(factors) for record in joined.records])
    assert [tuple(s.shape) for s in sums] == [*SHAPES, (2, 3)]
    for record, total in zip(records, sums, strict=True):
        np.testing.assert_allclose(total, record.weighted_sum(factors), rtol=1e-6, atol=1e-6)


def test_a_norm_is_that_of_all_that_is_joined():
    explicit = gradients(tf.float64)
    joined = Joined(list(map(Explicit, explicit)), [0] * 5)
    squares = tf.add_n([record.squared_norms() for record in joined.records])
    exact = sum(np.square(g.numpy().reshape(6, -1)).sum(1) for g in explicit)
    assert (squares.numpy() >= exact).all()
    np.testing.assert_allclose(squares, exact, rtol=1e-12)


@pytest.mark.parametrize(
    "dtypes, keys", [(["float32", "float64"], [0, 0]), (["float32"] * 2, [0, 1])]
)
def test_other_keys_and_dtypes_stay_apart(dtypes, keys):
    records = [Explicit(tf.ones([2, 3], dtype)) for dtype in dtypes]
    joined = Joined(records, keys)
    assert joined.records == records
    assert joined.keys == keys


def test_a_record_that_is_not_finite_is_seen_and_can_be_left_out():
    joined = Joined([Explicit(tf.constant([[1.0], [np.nan]])), Explicit(tf.ones([2, 2]))], [0, 0])
    [record] = joined.records
    assert np.isfinite(record.squared_norms()).tolist() == [True, False]
    sums = joined.by_variable([record.weighted_sum(tf.constant([1.0, 0.0]))])
    assert [s.numpy().tolist() for s in sums] == [[1.0], [1.0, 1.0]]
