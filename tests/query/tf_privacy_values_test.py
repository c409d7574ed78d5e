"""The records, and the results, of the test cases that TensorFlow Privacy publishes.

Two of them differ on purpose: lists and tuples match each other, and a clip is no `tf.Variable`
(docs/migration.md).
"""

import numpy as np
import pytest
import tensorflow as tf

import tfdp


def _run(query, records, weights=None):
    state = query.initial_global_state()
    params = query.derive_sample_params(state)
    sample = query.initial_sample_state(records[0])
    for record, *weight in zip(records, *([] if weights is None else [weights]), strict=True):
        sample = query.accumulate_record(params, sample, record, *weight)
    return query.get_noised_result(sample, state)[0]


def _sum(clip):
    return tfdp.GaussianSumQuery(l2_norm_clip=clip, stddev=0.0)


def _average(clip, denominator):
    return tfdp.NormalizedQuery(numerator_query=_sum(clip), denominator=denominator)


VALUES = {
    "sum, no clip": (_sum(10.0), [[2.0, 0.0], [-1.0, 1.0]], [1.0, 1.0]),
    "sum, clip": (_sum(5.0), [[-6.0, 8.0], [4.0, -3.0]], [1.0, 1.0]),
    "average": (_average(5.0, 2.0), [[-6.0, 8.0], [4.0, -3.0]], [0.5, 0.5]),
    "plain sum": (tfdp.NoPrivacySumQuery(), [[2.0, 0.0], [-1.0, 1.0]], [1.0, 1.0]),
    "plain average": (tfdp.NoPrivacyAverageQuery(), [[5.0, 0.0], [-1.0, 2.0]], [2.0, 1.0]),
    "nested sum": (
        tfdp.NestedSumQuery([_sum(10.0), _sum(10.0)]),
        [[1.0, [2.0, 3.0]], [4.0, [3.0, 2.0]]],
        [5.0, [5.0, 5.0]],
    ),
    "nested average": (
        tfdp.NestedQuery([_average(4.0, 5.0), _average(5.0, 5.0)]),
        [[1.0, [12.0, 9.0]], [5.0, [1.0, 2.0]]],
        [1.0, [1.0, 1.0]],
    ),
    "nested dicts": (
        tfdp.NestedQuery([_sum(1.0), {"c": _average(10.0, 2.0), "d": [_sum(10.0)]}]),
        [
            [{"a": 0.0, "b": 2.71828}, {"c": (-4.0, 6.0), "d": [-4.0]}],
            [{"a": 3.14159, "b": 0.0}, {"c": (6.0, -4.0), "d": [5.0]}],
        ],
        [{"a": 1.0, "b": 1.0}, {"c": (1.0, 1.0), "d": [1.0]}],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_result(name):
    query, records, expected = VALUES[name]
    if all(isinstance(number, float) for number in records[0]):
        records = [tf.constant(record) for record in records]
        np.testing.assert_allclose(_run(query, records), expected, rtol=1e-6)
        return
    got = _run(query, records)
    tf.nest.assert_same_structure(got, expected)
    np.testing.assert_allclose(tf.nest.flatten(got), tf.nest.flatten(expected), rtol=1e-6)


INTEGERS = {
    "central": lambda bound: tfdp.DiscreteGaussianSumQuery(l2_norm_bound=bound, stddev=0.0),
    "distributed": lambda bound: tfdp.DistributedDiscreteGaussianSumQuery(
        l2_norm_bound=bound, local_stddev=0.0
    ),
    "skellam": lambda bound: tfdp.DistributedSkellamSumQuery(
        l1_norm_bound=1000, l2_norm_bound=bound, local_stddev=0.0
    ),
}


@pytest.mark.parametrize("make", INTEGERS.values(), ids=INTEGERS)
def test_sums_of_integers(make):
    vectors = [tf.constant([2, 0]), tf.constant([-1, 1])]
    np.testing.assert_array_equal(_run(make(10), vectors), [1, 1])
    nested = [tf.constant([1, 0]), {"a": tf.ones([3], tf.int32), "b": [tf.ones([2, 2], tf.int32)]}]
    for size in (1, 3):
        result = _run(make(10), [nested] * size)
        tf.nest.map_structure(
            lambda got, one, size=size: np.testing.assert_array_equal(got, size * one),
            result,
            nested,
        )
    np.testing.assert_array_equal(_run(make(14.2), [tf.constant([10, 10])]), [10, 10])
    for bound in (0, 3, 10, 14.1):
        with pytest.raises(tf.errors.InvalidArgumentError):
            _run(make(bound), [tf.constant([10, 10])])
    with pytest.raises(TypeError):
        _run(make(10), [tf.constant([2.0, 0.0])])


@pytest.mark.parametrize("stddev", [10, 100, 1000])
def test_noise_on_a_sum_of_integers(stddev, check_stddev):
    query = tfdp.DiscreteGaussianSumQuery(l2_norm_bound=1000, stddev=stddev)
    records = [tf.zeros([1000], tf.int32), tf.ones([1000], tf.int32)]
    check_stddev(_run(query, records).numpy() - 1.0, stddev)


@pytest.mark.parametrize(("local_stddev", "records"), [(2, 1), (10, 4), (1000, 1), (1000, 25)])
def test_shares_of_noise_on_a_sum_of_integers(local_stddev, records, check_stddev):
    query = tfdp.DistributedDiscreteGaussianSumQuery(l2_norm_bound=10.0, local_stddev=local_stddev)
    noise = _run(query, [tf.zeros([1000], tf.int32)] * records)
    check_stddev(noise.numpy(), local_stddev * records**0.5)


def test_skellam_sums_and_averages(check_stddev):
    def query(**kwargs):
        return tfdp.DistributedSkellamSumQuery(**kwargs)

    two = [tf.constant([1, 2]), tf.constant([3, 4])]
    for bounds in (
        {"l1_norm_bound": 1, "l2_norm_bound": 100},
        dict(l1_norm_bound=10, l2_norm_bound=4),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            _run(query(**bounds, local_stddev=0.0), two)
    average = tfdp.query.DistributedSkellamAverageQuery(
        l1_norm_bound=3.0, l2_norm_bound=3.0, local_stddev=0.0, denominator=2.0
    )
    np.testing.assert_array_equal(_run(average, [tf.constant([1, 1])] * 2), [1, 1])
    noisy = query(l1_norm_bound=1000.0, l2_norm_bound=100, local_stddev=1.0)
    check_stddev(_run(noisy, [tf.ones([1000], tf.int32)]) - 1, 1.0)
    check_stddev(_run(noisy, [tf.zeros([1000], tf.int32)] * 100), 10.0)


def test_noise_on_numbers(check_stddev):
    # Records of one number each, and stddev = 1: here a thousand of them at once.
    records = [tf.fill([1000], 2.71828), tf.fill([1000], 3.14159)]
    query = tfdp.GaussianSumQuery(l2_norm_clip=5.0 * 1000**0.5, stddev=1.0)
    check_stddev(_run(query, records).numpy() - 2.71828 - 3.14159, 1.0)


def test_noise_of_a_nested_query(check_stddev):
    def part(clip):
        return tfdp.GaussianSumQuery(l2_norm_clip=clip, stddev=2.71828)

    query = tfdp.NestedSumQuery((part(1.5), tfdp.NormalizedQuery(part(0.5), 3.14159)))
    zeros = tf.zeros([1000])
    first, others = _run(query, [(zeros, [zeros, zeros])])
    check_stddev(first.numpy(), 2.71828)
    check_stddev(np.concatenate(others), 2.71828 / 3.14159)


def test_query_that_is_no_sum_is_refused_in_a_nested_sum():
    tfdp.NestedQuery(tfdp.NoPrivacyAverageQuery())
    with pytest.raises((TypeError, ValueError), match="NoPrivacyAverageQuery"):
        tfdp.NestedSumQuery(tfdp.NoPrivacyAverageQuery())


def test_weighted_average():
    records = [tf.constant([4.0, 0.0]), tf.constant([-1.0, 1.0])]
    result = _run(tfdp.NoPrivacyAverageQuery(), records, weights=[1, 3])
    np.testing.assert_allclose(result, [0.25, 0.75])


def test_merged_sums():
    query = tfdp.GaussianSumQuery(l2_norm_clip=10.0, stddev=1.0)

    def state(records):
        sample = query.initial_sample_state(tf.zeros([2]))
        for record in records:
            sample = query.accumulate_record(10.0, sample, tf.constant(record))
        return sample

    merged = query.merge_sample_states(
        state([[2.0, 0.0], [-1.0, 1.0]]), state([[3.0, 5.0], [-1.0, 4.0]])
    )
    np.testing.assert_allclose(merged, [3.0, 10.0], rtol=1e-6)


def test_template_may_be_a_spec():
    template = tf.TensorSpec.from_tensor(tf.constant([1.0, 2.0]))
    np.testing.assert_array_equal(tfdp.NoPrivacySumQuery().initial_sample_state(template), [0, 0])


@pytest.mark.parametrize("query", [_sum(1.0), tfdp.NoPrivacySumQuery()])
@pytest.mark.parametrize("records", [([1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0])])
def test_records_with_another_number_of_leaves(query, records):
    with pytest.raises(ValueError, match="Structures differ"):
        _run(query, list(records))


@pytest.mark.parametrize(
    ("queries", "record"), [([_sum(1.0)] * 2, [1.0]), ([_sum(1.0), [_sum(1.0)]], [1.0, 1.0])]
)
def test_record_that_does_not_fit_the_queries(queries, record):
    with pytest.raises(ValueError, match="Expected"):
        _run(tfdp.NestedSumQuery(queries), [record])


@pytest.mark.parametrize("clip", [tf.Variable(5.0), tf.constant(5.0)])
def test_clip_that_could_change_is_refused(clip):
    with pytest.raises(TypeError, match="l2_norm_clip must be a real number"):
        _sum(clip)
