"""Sums of integers with discrete Gaussian noise: by hand, checked, noised and priced."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.events import IntegerGaussianSumEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import DiscreteGaussianSumQuery

BAD = [-1.0, math.nan, math.inf, "1", None, True]


def _sum(query, records):
    params = query.derive_sample_params(query.initial_global_state())
    state = query.initial_sample_state(records[0])
    for record in records:
        state = query.accumulate_record(params, state, record)
    return state


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_sum_and_its_dtype(dtype):
    records = [{"a": tf.constant([3, -4], dtype), "b": tf.constant(i, dtype)} for i in range(3)]
    for stddev in (0.0, 2.0):
        query = DiscreteGaussianSumQuery(10.0, stddev)
        result, _, event = query.get_noised_result(_sum(query, records), ())
        assert event == query.derive_event(()) == IntegerGaussianSumEvent(10.0, stddev)
        assert result["a"].dtype == result["b"].dtype == dtype
        if not stddev:
            np.testing.assert_array_equal(result["a"], [9, -12])
            assert result["b"] == 3


@pytest.mark.parametrize(
    ("bound", "record", "holds"),
    [
        (5.0, [3, 4], True),
        (math.nextafter(5.0, 0), [3, 4], False),
        (14.1, [10, 10], False),
        (14.2, [10, 10], True),
        (0.0, [0, 0], True),
        (0.0, [0, 1], False),
        # Neither float32 nor float64 sees the one.
        (float(2**30), [2**30, 0], True),
        (float(2**30), [2**30, 1], False),
        (float(2**31 - 1), [-(2**31 - 1), 0], True),
        (float(2**31 - 1), [-(2**31), 0], False),
        (float(2**31 - 1), [2**62, 0], False),
        (float(2**31 - 1), [-(2**63), 0], False),
        (float(2**31 - 1), [2**32, 2**32], False),
    ],
)
def test_bound_is_checked_exactly(bound, record, holds):
    query = DiscreteGaussianSumQuery(bound, 1.0)
    record = tf.constant(record, tf.int64)
    if holds:
        np.testing.assert_array_equal(query.preprocess_record((), record), record)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="exceeds l2_norm_bound"):
        query.preprocess_record((), record)
    compiled = tf.function(lambda r: query.preprocess_record((), r), jit_compile=True)
    np.testing.assert_array_equal(compiled(record), [0, 0])


@pytest.mark.parametrize("stddev", [0.6, 3.0])
def test_noise_is_that_of_the_event(stddev):
    query = DiscreteGaussianSumQuery(1.0, stddev)
    draw = tf.function(lambda: query.get_noised_result(tf.zeros([20_000], tf.int32), ())[0])
    draws = draw().numpy()
    support = np.arange(-9, 10)
    for factor, right in ((1.0, True), (1.25, False), (0.8, False)):
        weights = np.exp(-((np.arange(-99, 100) / (stddev * factor)) ** 2) / 2)
        expected = (weights / weights.sum())[90:109] * len(draws)
        kept = expected > 5
        counts = np.array([np.sum(draws == x) for x in support])[kept]
        expected = expected[kept] * counts.sum() / expected[kept].sum()
        assert (stats.chisquare(counts, expected).pvalue > 1e-9) == right


def test_noise_is_new_in_every_step_and_for_every_leaf():
    query = DiscreteGaussianSumQuery(1.0, 1000.0)
    zeros = [tf.zeros([50], tf.int64), tf.zeros([50], tf.int64)]
    draw = tf.function(lambda: query.get_noised_result(zeros, ())[0])
    leaves = [leaf.numpy().tolist() for _ in range(2) for leaf in draw()]
    assert len({tuple(leaf) for leaf in leaves}) == 4
    seeded = DiscreteGaussianSumQuery(1.0, 1.0, SeededRandomSource(0))
    assert seeded.derive_event(()).seeded


def test_average_is_a_real_number():
    query = tfdp.NormalizedQuery(DiscreteGaussianSumQuery(5.0, 0.0), 2.5)
    result, _, event = query.get_noised_result(
        _sum(query, [tf.constant([3, 4])]), query.initial_global_state()
    )
    assert result.dtype == tf.float32
    np.testing.assert_allclose(result, [1.2, 1.6])
    assert event == IntegerGaussianSumEvent(5.0, 0.0)


def test_beside_real_numbers_in_a_nested_query():
    query = tfdp.NestedQuery([DiscreteGaussianSumQuery(5.0, 0.0), tfdp.GaussianSumQuery(1.0, 0.0)])
    record = [tf.constant([3, 4]), tf.constant([2.0])]
    result, _, event = query.get_noised_result(
        _sum(query, [record] * 2), query.initial_global_state()
    )
    np.testing.assert_array_equal(result[0], [6, 8])
    np.testing.assert_allclose(result[1], [2.0], rtol=1e-6)
    assert [type(part).__name__ for part in event.events] == [
        "IntegerGaussianSumEvent",
        "GaussianSumEvent",
    ]


def test_bound_below_one_is_charged_as_one():
    assert DiscreteGaussianSumQuery(0.0, 2.0).derive_event(()) == IntegerGaussianSumEvent(1.0, 2.0)


def test_merged_sums_are_the_sum():
    query = DiscreteGaussianSumQuery(9.0, 0.0)
    left, right = ([tf.constant([i, -i])] for i in (2, 3))
    merged = query.merge_sample_states(_sum(query, left), _sum(query, right))
    np.testing.assert_array_equal(merged, _sum(query, left + right))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int16, tf.uint32, tf.bool])
def test_other_records_are_refused(dtype):
    query = DiscreteGaussianSumQuery(1.0, 1.0)
    for use in (query.initial_sample_state, lambda r: query.preprocess_record((), r)):
        with pytest.raises(TypeError, match="must hold numbers|must be int32 or int64"):
            use(tf.zeros([2], dtype))


@pytest.mark.parametrize("bad", BAD)
def test_refuses_bad_arguments(bad):
    with pytest.raises((TypeError, ValueError), match="l2_norm_bound must be"):
        DiscreteGaussianSumQuery(bad, 1.0)
    with pytest.raises((TypeError, ValueError), match="stddev must be"):
        DiscreteGaussianSumQuery(1.0, bad)


def test_refuses_noise_that_integers_cannot_have():
    for stddev in (1e-4, 2.0**51):
        with pytest.raises(ValueError, match="stddev must be"):
            DiscreteGaussianSumQuery(1.0, stddev)
