"""Gradients of a table, by hand: rows that are used twice, negative numbers, and long records."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.forms.rows import Rows


def test_row_that_is_used_twice_adds_up():
    # Row 1 gets 3 + 4, row 0 gets 5: 49 + 25, not 9 + 16 + 25.
    rows = Rows(tf.constant([[1, 0, 1]]), tf.constant([[[3.0], [5.0], [4.0]]]), 2)
    np.testing.assert_allclose(rows.squared_norms(), [74.0], rtol=1e-5)
    np.testing.assert_allclose(rows.explicit()[0, :, 0], [5.0, 7.0])


def test_summands_are_positions():
    ids = tf.constant([[1, 0, 1], [0, 0, 0]])
    assert Rows(ids, tf.ones([2, 3, 4]), 2).summands() == 3


def test_negative_numbers_count_from_the_end():
    rows = Rows(tf.constant([[-1, 2]]), tf.constant([[[3.0], [4.0]]]), 3)
    np.testing.assert_allclose(rows.squared_norms(), [49.0], rtol=1e-5)


def test_record_with_a_place_that_does_not_exist_has_no_norm():
    long = [[0] * 70, [2, *[0] * 69], [*[1] * 69, -3]]
    for ids in ([[0, 1], [0, 2], [-3, 0]], [[1], [2], [-3]], long):
        ids, ones = tf.constant(ids), tf.ones([3, len(ids[0]), 1])
        checked = Rows(tf.zeros_like(ids), ones, 2, tf.constant([True, False, False]))
        for rows in (Rows(ids, ones, 2), checked, checked.merged(checked)):
            np.testing.assert_array_equal(np.isfinite(rows.squared_norms()), [True, False, False])
            total = rows.weighted_sum(tf.constant([1.0, 0.0, 0.0]))
            assert tf.reduce_sum(total) == rows.ids.shape[1]


def test_weighted_sum_adds_over_records():
    rows = Rows(tf.constant([[0], [0]]), tf.constant([[[2.0]], [[6.0]]]), 2)
    np.testing.assert_allclose(rows.weighted_sum(tf.constant([1.0, 0.5])), [[5.0], [0.0]])


@pytest.mark.parametrize("compiled", [False, True], ids=["kernels", "xla"])
@pytest.mark.parametrize("positions", [1, 5, 70, 200])
def test_every_way_to_the_norm_is_that_of_the_explicit_gradients(positions, compiled):
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(0, 4, (3, positions)))
    rows = Rows(ids, tf.constant(rng.normal(size=(3, positions, 2))), 4)
    expected = np.sum(np.square(rows.explicit()), (1, 2))
    norms = tf.function(rows.squared_norms, jit_compile=True) if compiled else rows.squared_norms
    found = norms().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert (found >= expected * (1 - 1e-15)).all()


@pytest.mark.parametrize("shape", [(0, 70), (0, 5), (2, 0)])
def test_no_records_and_records_of_no_positions(shape):
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def of_any_length(ids):
        return Rows(ids, tf.ones([*tf.unstack(tf.shape(ids)), 3]), 4).squared_norms()

    ids = tf.zeros(shape, tf.int32)
    for norms in (of_any_length(ids), Rows(ids, tf.ones([*shape, 3]), 4).squared_norms()):
        np.testing.assert_allclose(norms, np.zeros(shape[0]), atol=1e-30)


def test_scaled_rows_are_the_gradient_times_the_scales():
    rng = np.random.default_rng(1)
    rows = tf.constant(rng.normal(size=(3, 4, 2)))
    ids = tf.constant([[0, 1, 1, -1], [2, 2, 2, 2], [4, 0, 4, 3]])
    form, scales = Rows(ids, rows, 5), tf.constant(rng.uniform(0.1, 9, (5, 2)))
    expected = form.explicit() * scales
    scaled = form.scaled(scales)
    np.testing.assert_allclose(scaled.explicit(), expected, rtol=1e-12)
    squares = tf.reduce_sum(expected**2, [1, 2])
    np.testing.assert_allclose(scaled.squared_norms(), squares, rtol=1e-9)
    factors = tf.constant(rng.uniform(size=3))
    total = tf.tensordot(factors, expected, 1)
    np.testing.assert_allclose(scaled.weighted_sum(factors), total, rtol=1e-12)


def test_rows_with_counts_are_those_of_the_explicit_gradients():
    # A record counts once in a row that it uses twice, and not in one that it adds zeros to.
    ids = tf.constant([[3, 1, 1], [1, 0, 2], [2, 1, 3]])
    rows = tf.constant([[[0.0], [2.0], [1.0]], [[1.0], [0.0], [3.0]], [[5.0], [1.0], [7.0]]])
    form, factors = Rows(ids, rows, 4), tf.constant([1.0, 0.5, 0.25])
    keep = tf.constant([True, True, False])
    found, expected = (
        tf.convert_to_tensor(one.weighted_rows(factors, keep, 0.6))
        for one in (form, Explicit(form.explicit()))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.count_nonzero(found[:, -1]) == 2


def test_groups_of_records_of_any_length():
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def grouped(ids):
        rows = tf.ones([*tf.unstack(tf.shape(ids)), 3])
        return Rows(ids, rows, 4).grouped(None, 2).explicit()[..., 0]

    found = grouped(tf.constant([[0, 1, 1], [1, 2, 0], [2, 2, 2], [3, 3, 1]]))
    np.testing.assert_array_equal(found, [[2, 3, 1, 0], [0, 1, 3, 2]])


@pytest.mark.parametrize("size", [2, tf.constant(2)], ids=["known", "unknown"])
def test_groups_are_weighted_sums_of_records(size):
    rng = np.random.default_rng(2)
    form = Rows(
        tf.constant([[0, 1], [1, 1], [2, 0], [2, 3]]), tf.constant(rng.normal(size=(4, 2, 3))), 4
    )
    each = form.explicit().numpy()
    np.testing.assert_allclose(form.grouped(None, size).explicit(), each[::2] + each[1::2])
    factors = np.array([1.0, 0.0, 2.0, 0.5])
    grouped = form.grouped(tf.constant(factors), size)
    expected = np.stack([each[0], 2 * each[2] + each[3] / 2])
    np.testing.assert_allclose(grouped.explicit(), expected)
    np.testing.assert_allclose(grouped.squared_norms(), np.sum(expected**2, (1, 2)), rtol=1e-9)
