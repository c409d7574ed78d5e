from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tfdp.events import ComposedEvent, GaussianSumEvent, NonPrivateEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import (
    DistributedDiscreteGaussianSumQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    HistogramQuery,
    NestedQuery,
    NestedSumQuery,
    NoPrivacyAverageQuery,
    NoPrivacySumQuery,
    NormalizedQuery,
    QuantileAdaptiveClipSumQuery,
    WeightedSumQuery,
)


def _release(query, records):
    global_state = query.initial_global_state()
    params = query.derive_sample_params(global_state)
    state = query.initial_sample_state(records[0])
    for record in records:
        state = query.accumulate_record(params, state, record)
    return query.get_noised_result(state, global_state)


def test_clips_every_part_by_its_own_norm():
    # (3, 4) to norm 1: (0.6, 0.8). (6, 8) to norm 5: (3, 4), twice 6, 8. Averages are over 2.
    query = NestedQuery(
        [
            GaussianSumQuery(1.0, 0.0),
            GaussianAverageQuery(5.0, noise_multiplier=0.0, denominator=2.0),
        ]
    )
    record = [tf.constant([3.0, 4.0]), tf.constant([6.0, 8.0])]
    result, _, _ = _release(query, [record, record])
    np.testing.assert_allclose(result[0], [1.2, 1.6], rtol=1e-6)
    np.testing.assert_allclose(result[1], [3.0, 4.0], rtol=1e-6)


def test_queries_are_a_prefix_of_the_record():
    # "a" is clipped over both of its leaves: |(3, 4)| = 5 to 1. "b" is clipped leaf by leaf.
    query = NestedQuery({"a": GaussianSumQuery(1.0, 0.0), "b": [GaussianSumQuery(1.0, 0.0)] * 2})
    record = {"b": [tf.constant(3.0), tf.constant(4.0)], "a": (tf.constant(3.0), tf.constant(4.0))}
    result, _, _ = _release(query, [record])
    np.testing.assert_allclose(result["a"], (0.6, 0.8), rtol=1e-6)
    np.testing.assert_allclose(result["b"], [1.0, 1.0], rtol=1e-6)
    assert query.num_norm_groups == 3
    assert query.norm_groups(record) == [0, 0, 1, 2]  # tf.nest flattens "a" before "b".


def test_event_keeps_the_event_of_every_part_in_order():
    inner = NestedQuery({"y": GaussianSumQuery(2.0, 3.0), "x": GaussianSumQuery(4.0, 5.0)})
    query = NestedQuery([inner, GaussianSumQuery(1.0, 0.5)])
    xy = ComposedEvent((GaussianSumEvent(4.0, 5.0), GaussianSumEvent(2.0, 3.0)))  # Sorted keys.
    expected = ComposedEvent((xy, GaussianSumEvent(1.0, 0.5)))
    assert query.derive_event(query.initial_global_state()) == expected
    record = [{"x": tf.zeros([1]), "y": tf.zeros([1])}, tf.zeros([1])]
    assert _release(query, [record])[2] == expected


def test_event_says_which_part_has_no_protection():
    query = NestedQuery([GaussianSumQuery(1.0, 1.0), NoPrivacySumQuery()])
    event = query.derive_event(query.initial_global_state())
    assert event == ComposedEvent((GaussianSumEvent(1.0, 1.0), NonPrivateEvent()))


def test_event_says_which_part_is_seeded():
    seeded = GaussianSumQuery(1.0, 1.0, SeededRandomSource(0))
    query = NestedQuery([GaussianSumQuery(1.0, 1.0), seeded])
    event = query.derive_event(query.initial_global_state())
    assert [e.seeded for e in event.events] == [False, True]


def test_event_is_none_if_that_of_a_part_is():
    class Symbolic(GaussianSumQuery):
        def get_noised_result(self, sample_state, global_state):
            return (*super().get_noised_result(sample_state, global_state)[:2], None)

    query = NestedQuery([GaussianSumQuery(1.0, 1.0), Symbolic(1.0, 1.0)])
    assert _release(query, [[tf.zeros([1]), tf.zeros([1])]])[2] is None


def test_every_part_has_its_own_noise(check_stddev, check_independent):
    queries = [
        GaussianSumQuery(1.0, 0.5),
        [
            GaussianSumQuery(1.0, 4.0),
            GaussianAverageQuery(1.0, noise_multiplier=3.0, denominator=2.0),
        ],
    ]
    record = [tf.zeros([1000]), [tf.zeros([1000]), tf.zeros([1000])]]
    small, (large, average) = _release(NestedQuery(queries), [record])[0]
    check_stddev(small, 0.5)
    check_stddev(large, 4.0)
    check_stddev(average, 1.5)  # 3 * 1 / 2
    check_independent(small, large)
    check_independent(large, average)


def test_joins_queries_of_different_kinds():
    # Clip 1: 3 -> 1 twice. Plain average of 3 and 5.
    query = NestedQuery({"p": GaussianSumQuery(1.0, 0.0), "q": NoPrivacyAverageQuery()})
    records = [{"p": tf.constant(3.0), "q": tf.constant(x)} for x in (3.0, 5.0)]
    result, _, _ = _release(query, records)
    np.testing.assert_allclose([result["p"], result["q"]], [2.0, 4.0], rtol=1e-6)
    assert not query.is_sum
    assert query.num_norm_groups is None


class _WithMetric(GaussianSumQuery):
    def derive_metrics(self, global_state):
        return {"clip": global_state.l2_norm_clip}


class _Pair(NamedTuple):
    left: Any
    right: Any


ONE, TWO, THREE = (_WithMetric(clip, 0.0) for clip in (1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        (ONE, {"clip": 1.0}),
        ([ONE, NormalizedQuery(TWO, 4.0)], {"0/clip": 1.0, "1/clip": 2.0}),
        (
            {"key2": [TWO, THREE], "key1": ONE},
            {"key1/clip": 1.0, "key2/0/clip": 2.0, "key2/1/clip": 3.0},
        ),
        (_Pair(ONE, (TWO,)), {"left/clip": 1.0, "right/0/clip": 2.0}),
        ([NestedQuery({"a": ONE}), TWO], {"0/a/clip": 1.0, "1/clip": 2.0}),
        ({3: ONE, 1: TWO}, {"1/clip": 2.0, "3/clip": 1.0}),
    ],
    ids=["alone", "list", "dict", "named tuple", "nested", "numbers as keys"],
)
def test_metrics_are_named_by_their_paths(queries, expected):
    query = NestedQuery(queries)
    metrics = query.derive_metrics(query.initial_global_state())
    assert list(metrics.items()) == list(expected.items())


def test_changing_the_structure_that_was_passed_changes_nothing():
    inner = {"x": GaussianSumQuery(1.0, 0.0)}
    queries = [inner, GaussianSumQuery(1.0, 0.0)]
    query = NestedQuery(queries)
    queries.append(GaussianSumQuery(1.0, 0.0))
    inner["x"] = NoPrivacySumQuery()
    assert query.queries == [{"x": GaussianSumQuery(1.0, 0.0)}, GaussianSumQuery(1.0, 0.0)]


@pytest.mark.parametrize("kind", [NestedQuery, NestedSumQuery])
@pytest.mark.parametrize("queries", [[], {}, None, 1.0, [None], [GaussianSumQuery(1, 1), 2.0]])
def test_refuses_what_is_not_a_structure_of_queries(kind, queries):
    with pytest.raises(TypeError, match="queries must be a structure of DPQuery"):
        kind(queries)


def test_nested_sum_refuses_a_query_that_does_not_sum():
    with pytest.raises(TypeError, match="must be a sum. Received: <.*NoPrivacyAverageQuery"):
        NestedSumQuery([GaussianSumQuery(1.0, 1.0), NoPrivacyAverageQuery()])


@pytest.mark.parametrize(
    "record",
    [
        {"a": tf.zeros([2])},
        {"a": tf.zeros([2]), "b": [tf.zeros([3])], "c": tf.zeros([])},
        {"a": tf.zeros([2]), "b": tf.zeros([3])},
        {"a": tf.zeros([2]), "b": [tf.zeros([3]), tf.zeros([3])]},
        [tf.zeros([2]), [tf.zeros([3])]],
        tf.zeros([2]),
    ],
)
def test_structure_mismatch_prints_both_structures(record):
    query = NestedQuery({"a": GaussianSumQuery(1.0, 1.0), "b": [GaussianSumQuery(1.0, 1.0)]})
    with pytest.raises(ValueError) as error:
        query.initial_sample_state(record)
    expected, received = str(error.value).split("\n")[1:]
    assert expected == "  Expected: {'a': '.', 'b': ['.']}"
    assert received.startswith("  Received: ")
    assert "(2,)" in received


def _adaptive():
    return QuantileAdaptiveClipSumQuery(1.0, 1.0, 0.5, 0.2, 1.0, 10.0)


def test_what_one_part_is_all_parts_are_together():
    plain, weighted = GaussianSumQuery(1.0, 1.0), WeightedSumQuery(GaussianSumQuery(2.0, 1.0), 3.0)
    assert NestedQuery([plain, weighted]).takes_weights
    assert not NestedQuery([plain, plain]).takes_weights
    histogram = NestedQuery([plain, HistogramQuery(1.0)])
    assert not histogram.has_results_like_records and not histogram.has_numeric_result
    assert NestedQuery([plain, weighted]).has_results_like_records
    shares = [DistributedDiscreteGaussianSumQuery(1.0, 1.0, min_contributors=n) for n in (2, 3)]
    assert NestedQuery([plain, *shares]).min_contributors == 3


def test_factors_and_statistics_of_a_batch_are_those_of_its_records():
    # The clips are 1, 2 and 1; norms are [records, parts].
    query = NestedQuery([_adaptive(), [GaussianSumQuery(2.0, 1.0), _adaptive()]])
    assert (query.num_norm_groups, query.num_norm_statistics) == (3, 2)
    params = query.derive_sample_params(query.initial_global_state())
    norms = tf.constant([[2.0, 1.0, 0.5], [0.5, 8.0, 4.0]])
    factors, counts = query.scale_factors(params, norms), query.norm_statistics(params, norms)
    np.testing.assert_allclose(factors, [[0.5, 1.0, 1.0], [1.0, 0.25, 0.25]], rtol=1e-6)
    np.testing.assert_array_equal(counts, [[-0.5, 0.5], [0.5, -0.5]])
