import numpy as np
import tensorflow as tf

from tfdp.events import NonPrivateEvent
from tfdp.query import NoPrivacyAverageQuery, NoPrivacySumQuery


def test_sum_is_plain():
    query = NoPrivacySumQuery()
    state = query.initial_sample_state(tf.zeros([2]))
    for record in ([3.0, 4.0], [300.0, -400.0]):
        state = query.accumulate_record((), state, tf.constant(record))
    result, _, event = query.get_noised_result(state, query.initial_global_state())
    np.testing.assert_array_equal(result, [303.0, -396.0])
    assert event == NonPrivateEvent()


def test_average_is_over_the_realised_number():
    # (1 + 2 + 6) / 3
    query = NoPrivacyAverageQuery()
    state = query.initial_sample_state({"x": tf.zeros([])})
    for value in (1.0, 2.0, 6.0):
        state = query.accumulate_record((), state, {"x": tf.constant(value)})
    result, _, event = query.get_noised_result(state, query.initial_global_state())
    np.testing.assert_allclose(result["x"], 3.0)
    assert event == NonPrivateEvent()


def test_average_counts_weights():
    # (1 * 1 + 3 * 5) / 4
    query = NoPrivacyAverageQuery()
    state = query.initial_sample_state(tf.zeros([]))
    state = query.accumulate_record((), state, tf.constant(1.0))
    state = query.accumulate_record((), state, tf.constant(5.0), weight=3)
    np.testing.assert_allclose(query.get_noised_result(state, ())[0], 4.0)


def test_average_of_merged_samples_is_that_of_the_union():
    # {2} and {4, 9}: 15 / 3, not (2 + 6.5) / 2.
    query = NoPrivacyAverageQuery()
    empty = query.initial_sample_state(tf.zeros([]))
    left = query.accumulate_record((), empty, tf.constant(2.0))
    right = query.accumulate_record((), empty, tf.constant(4.0))
    right = query.accumulate_record((), right, tf.constant(9.0))
    merged = query.merge_sample_states(left, right)
    np.testing.assert_allclose(query.get_noised_result(merged, ())[0], 5.0)


def test_average_of_no_records_is_zero():
    query = NoPrivacyAverageQuery()
    result, _, event = query.get_noised_result(query.initial_sample_state(tf.zeros([2])), ())
    np.testing.assert_array_equal(result, [0.0, 0.0])
    assert event == NonPrivateEvent()


def test_count_does_not_saturate():
    # A float32 counter stops at 2^24.
    query = NoPrivacyAverageQuery()
    state = (tf.zeros([]), tf.constant(2.0**24, tf.float64))
    _, count = query.accumulate_record((), state, tf.constant(1.0))
    assert count.numpy() == 2**24 + 1
