import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp.events import (
    ComposedEvent,
    Event,
    GaussianSumEvent,
    NonPrivateEvent,
    UnsupportedEventError,
)
from tfdp.noise import SeededRandomSource
from tfdp.query import (
    GaussianSumQuery,
    NestedQuery,
    NoPrivacyAverageQuery,
    NoPrivacySumQuery,
    QuantileAdaptiveClipSumQuery,
    WeightedAverageQuery,
    WeightedRecord,
    WeightedSumQuery,
)

RECORD = tf.constant([3.0, 4.0])


def _preprocess(query, record, weight):
    params = query.derive_sample_params(query.initial_global_state())
    return query.preprocess_record(params, WeightedRecord(record, weight))


def _release(query, records, template=None):
    global_state = query.initial_global_state()
    params = query.derive_sample_params(global_state)
    state = query.initial_sample_state(records[0] if template is None else template)
    for record in records:
        state = query.accumulate_record(params, state, record)
    return query.get_noised_result(state, global_state)


# |(3, 4)| = 5 is clipped to 1: (0.6, 0.8); then weighted, the weight being in [0, 2].
@pytest.mark.parametrize(
    "weight, expected",
    [
        (0.5, [0.3, 0.4]),
        (0, [0.0, 0.0]),
        (1, [0.6, 0.8]),
        (2.0, [1.2, 1.6]),
        (2.5, [1.2, 1.6]),
        (1e30, [1.2, 1.6]),
        (math.inf, [1.2, 1.6]),
        (-0.5, [0.0, 0.0]),
        (-math.inf, [0.0, 0.0]),
        (math.nan, [0.0, 0.0]),
    ],
)
def test_clips_then_weights_by_the_bounded_weight(weight, expected):
    query = WeightedSumQuery(GaussianSumQuery(1.0, 0.0), max_weight=2.0)
    np.testing.assert_allclose(_preprocess(query, RECORD, weight), expected, rtol=1e-6)


def test_weight_does_not_count_towards_the_clip():
    # Weighting first would give |(1.5, 2)| = 2.5, below the clip, and so (1.5, 2).
    query = WeightedSumQuery(GaussianSumQuery(4.0, 0.0), max_weight=1.0)
    # 4/5 * 1/2 * (3, 4)
    np.testing.assert_allclose(_preprocess(query, RECORD, 0.5), [1.2, 1.6], rtol=1e-6)


def test_record_that_is_not_finite_is_zero_whatever_its_weight():
    query = WeightedSumQuery(GaussianSumQuery(1.0, 0.0), max_weight=2.0)
    for weight in (0.0, 1.0, math.inf, math.nan):
        np.testing.assert_array_equal(_preprocess(query, RECORD * np.inf, weight), [0.0, 0.0])


def test_averages_over_the_denominator_and_not_the_total_weight():
    # clip 5, denominator 4: (0.5 * (3, 4) + 1 * (0, 5)) / 4 = (1.5, 7) / 4.
    query = WeightedAverageQuery(5.0, noise_multiplier=0.0, denominator=4.0)
    records = [WeightedRecord(RECORD, 0.5), WeightedRecord(tf.constant([0.0, 9.0]), 1.0)]
    result, _, _ = _release(query, records)
    np.testing.assert_allclose(result, [0.375, 1.75], rtol=1e-6)


def test_event_has_the_bound_of_the_largest_weight():
    # max_weight * C = 3 * 0.5.
    query = WeightedSumQuery(GaussianSumQuery(0.5, 2.0), max_weight=3.0)
    assert query.derive_event(query.initial_global_state()) == GaussianSumEvent(1.5, 2.0)
    assert _release(query, [WeightedRecord(RECORD, 1.0)])[2] == GaussianSumEvent(1.5, 2.0)


def test_event_scales_every_part_of_a_nested_query():
    nested = NestedQuery([GaussianSumQuery(1.0, 2.0), NoPrivacySumQuery()])
    query = WeightedSumQuery(nested, max_weight=3.0)
    expected = ComposedEvent((GaussianSumEvent(3.0, 2.0), NonPrivateEvent()))
    assert query.derive_event(query.initial_global_state()) == expected


def test_event_that_cannot_be_scaled_is_refused():
    class OtherEvent(Event):
        pass

    class OtherQuery(NoPrivacySumQuery):
        def derive_event(self, global_state):
            return OtherEvent()

    with pytest.raises(UnsupportedEventError, match="OtherEvent"):
        WeightedSumQuery(OtherQuery(), max_weight=3.0)


def test_a_query_whose_event_follows_its_state_is_made_in_a_graph_too():
    @tf.function
    def weighted():
        return WeightedSumQuery(QuantileAdaptiveClipSumQuery(1, 1, 0.5, 1, 1, 4), 3.0).max_weight

    assert weighted() == 3.0


def test_noise_multiplier_of_an_average_is_relative_to_the_weighted_bound(check_stddev):
    # stddev = z * max_weight * C = 0.5 * 2 * 3 = 3 on the sum; over 4: 0.75.
    query = WeightedAverageQuery(3.0, noise_multiplier=0.5, denominator=4.0, max_weight=2.0)
    event = query.derive_event(query.initial_global_state())
    assert event == GaussianSumEvent(6.0, 3.0)
    assert event.noise_multiplier == 0.5
    result, _, _ = _release(query, [], template=WeightedRecord(tf.zeros([1000]), 0.0))
    check_stddev(result, 0.75)


def test_stddev_of_an_average_is_that_of_the_sum():
    query = WeightedAverageQuery(3.0, stddev=3.0, denominator=4.0, max_weight=2.0)
    assert query.derive_event(query.initial_global_state()) == GaussianSumEvent(6.0, 3.0)


def test_random_source_reaches_the_sum():
    query = WeightedAverageQuery(
        1.0, noise_multiplier=1.0, denominator=1.0, random_source=SeededRandomSource(0)
    )
    assert query.derive_event(query.initial_global_state()).seeded


@pytest.mark.parametrize("method", ["initial_sample_state", "preprocess_record"])
def test_refuses_a_record_without_weight(method):
    query = WeightedSumQuery(GaussianSumQuery(1.0, 0.0), 1.0)
    arguments = [1.0] if method == "preprocess_record" else []
    with pytest.raises(TypeError, match="must be tfdp.query.WeightedRecord"):
        getattr(query, method)(*arguments, (RECORD, 1.0))


BAD_NUMBERS = [
    (-1.0, ValueError),
    (math.nan, ValueError),
    (math.inf, ValueError),
    (True, TypeError),
    ("1", TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize("value, error", [*BAD_NUMBERS, (0.0, ValueError)])
def test_refuses_a_bad_max_weight(value, error):
    with pytest.raises(error, match="max_weight must be"):
        WeightedSumQuery(GaussianSumQuery(1.0, 1.0), value)
    with pytest.raises(error, match="max_weight must be"):
        WeightedAverageQuery(1.0, noise_multiplier=1.0, denominator=4.0, max_weight=value)


@pytest.mark.parametrize("name", ["l2_norm_clip", "noise_multiplier", "denominator"])
@pytest.mark.parametrize("value, error", BAD_NUMBERS)
def test_average_refuses_bad_numbers(name, value, error):
    arguments = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "denominator": 4.0, name: value}
    with pytest.raises(error, match=name):
        WeightedAverageQuery(**arguments)


@pytest.mark.parametrize("query", [None, 1.0, NoPrivacyAverageQuery()])
def test_refuses_what_is_not_a_query_that_sums(query):
    with pytest.raises(TypeError, match="sum_query must be a DPQuery that sums"):
        WeightedSumQuery(query, 1.0)


def test_average_refuses_what_is_not_a_random_source():
    with pytest.raises(TypeError, match="random_source"):
        WeightedAverageQuery(1.0, noise_multiplier=1.0, denominator=4.0, random_source=3)
