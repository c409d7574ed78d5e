"""Sums whose noise comes in shares: who brings it, how much there is, when nothing comes out."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import special, stats

import tfdp
from tfdp import query as tfdp_query
from tfdp.accounting import RDPAccountant
from tfdp.audit import epsilon_lower_bound
from tfdp.events import FullBatchSampling, GaussianSharesSumEvent, SkellamSharesSumEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import (
    DistributedDiscreteGaussianSumQuery,
    DistributedSkellamAverageQuery,
    DistributedSkellamSumQuery,
)

MAKE = {
    "gaussian": lambda bound=10.0, stddev=0.0, **kwargs: DistributedDiscreteGaussianSumQuery(
        bound, stddev, **kwargs
    ),
    "skellam": lambda bound=10.0, stddev=0.0, **kwargs: DistributedSkellamSumQuery(
        1e9, bound, stddev, **kwargs
    ),
}
ALL = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def _sum(query, records):
    params = query.derive_sample_params(query.initial_global_state())
    state = query.initial_sample_state(records[0])
    for record in records:
        state = query.accumulate_record(params, state, record)
    return state


@ALL
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_sum_and_its_dtype(make, dtype):
    records = [{"a": tf.constant([3, -4], dtype), "b": tf.constant(i, dtype)} for i in range(3)]
    state = _sum(make(), records)
    assert state.contributors == 3
    result, _, event = make().get_noised_result(state, ())
    assert event == make().derive_event(())
    np.testing.assert_array_equal(result["a"], [9, -12])
    assert result["b"] == 3
    assert result["a"].dtype == result["b"].dtype == dtype
    assert make(stddev=2.0).preprocess_record((), records[0]).sum["a"].dtype == dtype


@ALL
def test_nothing_is_released_of_fewer_than_are_charged_for(make):
    query = make(stddev=2.0, min_contributors=3)
    records = [tf.constant([1, 2])] * 3
    assert query.get_noised_result(_sum(query, records), ())[0].shape == [2]
    few = _sum(query, records[:2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="min_contributors=3"):
        query.get_noised_result(few, ())
    graph = tf.function(lambda: query.get_noised_result(few, ())[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="min_contributors=3"):
        graph()
    # XLA drops assertions.
    compiled = tf.function(lambda: query.get_noised_result(few, ())[0], jit_compile=True)
    np.testing.assert_array_equal(compiled(), [0, 0])
    merged = query.merge_sample_states(few, _sum(query, records[:1]))
    assert query.get_noised_result(merged, ())[0].shape == [2]


@ALL
def test_a_state_is_not_merged_with_itself(make):
    """One record's share would count as that of two."""
    query = make(stddev=2.0, min_contributors=2)
    state = _sum(query, [tf.constant([1, 2])])
    nested = tfdp_query.NestedQuery([query, query])
    for merging, twice in ((query, state), (nested, [state, state])):
        with pytest.raises(ValueError, match="merged with itself"):
            merging.merge_sample_states(twice, twice)


@ALL
def test_every_record_has_a_share_of_its_own(make):
    query, number, count = make(stddev=2.5, min_contributors=9), 4000, 9
    records = [tf.zeros([number], tf.int32)] * count

    @tf.function
    def shares():
        return tf.map_fn(
            lambda r: query.preprocess_record((), r).sum,
            tf.stack(records),
            fn_output_signature="int32",
        )

    for found in (
        shares().numpy(),
        np.stack([query.preprocess_record((), r).sum for r in records]),
    ):
        for share in found:
            low, high = stats.chi2.interval(1 - 1e-9, number)
            assert low < np.sum(share / 2.5 * share / 2.5) < high
            assert not low < np.sum(share / 2.5 * share / 2.5) * 1.5**2 < high
        correlations = np.corrcoef(found) - np.eye(count)
        assert np.max(np.abs(correlations)) < 6.8 / math.sqrt(number)
        assert np.max(np.abs(np.corrcoef([found[0], found[0]]) - np.eye(2))) > 6.8 / math.sqrt(
            number
        )


@ALL
def test_variance_of_the_sum_is_that_of_all_shares(make, check_stddev):
    query = make(stddev=3.0, min_contributors=16)
    zeros = tf.zeros([1500], tf.int64)
    result = query.get_noised_result(_sum(query, [zeros] * 16), ())[0]
    check_stddev(result, 12.0)
    assert query.derive_event(()).noise_multiplier == pytest.approx(1.2)


@ALL
def test_a_vectorized_map_draws_for_every_record(make):
    query = make(stddev=1000.0)
    mapped = tf.vectorized_map(
        lambda r: query.preprocess_record((), r).sum, tf.zeros([4, 30], tf.int64)
    )
    assert len({tuple(row) for row in mapped.numpy().tolist()}) == 4


@ALL
def test_a_record_that_counts_as_zero_has_its_share(make):
    query = make(1.0, 1000.0)
    compiled = tf.function(lambda r: query.is_within(r)[0], jit_compile=True)
    assert not compiled(tf.constant([10, 10]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="exceeds"):
        query.preprocess_record((), tf.constant([10, 10]))


def test_all_that_hold_a_query_say_that_records_draw():
    query = DistributedDiscreteGaussianSumQuery(1.0, 1.0)
    holders = [
        tfdp.NormalizedQuery(query, 2.0),
        tfdp.NestedQuery([tfdp.GaussianSumQuery(1.0, 1.0), query]),
        tfdp_query.ArrangedQuery(tfdp.NestedQuery([query]), [0]),
        tfdp_query.TreeRangeSumQuery(query),
    ]
    for holder in holders:
        assert holder.draws_for_records and holder.needs_separate_records
    assert not tfdp.GaussianSumQuery(1.0, 1.0).draws_for_records
    with pytest.raises(TypeError, match="take their noise"):
        tfdp_query.WeightedSumQuery(query, 2.0)


@ALL
def test_no_more_than_one_share_is_charged_for_where_nobody_says(make):
    query = make(1.0, 2.0)
    assert query.min_contributors == 1
    assert query.derive_event(()) == make(1.0, 2.0, min_contributors=1).derive_event(())


def test_gaussian_event():
    query = DistributedDiscreteGaussianSumQuery(14.1, 2.0, 100, 50)
    assert query.derive_event(()) == GaussianSharesSumEvent(14.1, 2.0, 100, 50)
    seeded = DistributedDiscreteGaussianSumQuery(1.0, 2.0, random_source=SeededRandomSource(0))
    assert seeded.derive_event(()).seeded


@pytest.mark.parametrize("shape", [[7], [2, 4]])
def test_more_coordinates_than_are_charged_for_are_refused(shape):
    query = DistributedDiscreteGaussianSumQuery(10.0, 1.0, max_coordinates=6)
    for use in (query.initial_sample_state, lambda r: query.preprocess_record((), r)):
        with pytest.raises(ValueError, match="max_coordinates=6"):
            use(tf.zeros(shape, tf.int32))
        use(tf.zeros([2, 3], tf.int32))


def test_as_many_coordinates_as_nobody_knows_are_refused():
    query = DistributedDiscreteGaussianSumQuery(10.0, 1.0)
    for spec in (tf.TensorSpec([None], tf.int32), tf.TensorSpec(None, tf.int64)):
        graph = tf.function(
            lambda r: query.preprocess_record((), r).sum, autograph=False, input_signature=[spec]
        )
        with pytest.raises(ValueError, match="known when a graph is built"):
            graph(tf.zeros([2], spec.dtype))


def test_no_more_coordinates_are_charged_for_than_a_sum_has():
    assert DistributedDiscreteGaussianSumQuery(1.0, 1.0).max_coordinates == 2**30
    DistributedDiscreteGaussianSumQuery(1.0, 1.0, max_coordinates=2**30)
    with pytest.raises(ValueError, match="max_coordinates must be at most 2\\^30"):
        DistributedDiscreteGaussianSumQuery(1.0, 1.0, max_coordinates=2**30 + 1)


@ALL
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1", None, True])
def test_refuses_bad_arguments(make, bad):
    with pytest.raises((TypeError, ValueError), match="local_stddev must be"):
        make(1.0, bad)
    with pytest.raises((TypeError, ValueError), match="l2_norm_bound must be"):
        make(bad, 1.0)
    with pytest.raises((TypeError, ValueError), match="min_contributors must be"):
        make(1.0, 1.0, min_contributors=bad)


@pytest.mark.parametrize(
    ("l1", "l2", "record", "holds"),
    [
        (7.0, 5.0, [3, -4], True),
        (6.9, 5.0, [3, -4], False),
        (7.0, 4.9, [3, -4], False),
        (0.0, 0.0, [0, 0], True),
        (float(2**61), float(2**31 - 1), [2**30, -(2**30)], True),
        (float(2**31 - 1), float(2**31 - 1), [2**30, -(2**30)], False),
        (float(2**61), float(2**31 - 1), [-(2**63), 2**62], False),
    ],
)
def test_both_norms_are_checked_exactly(l1, l2, record, holds):
    query = DistributedSkellamSumQuery(l1, l2, 0.0)
    record = tf.constant(record, tf.int64)
    if holds:
        np.testing.assert_array_equal(query.preprocess_record((), record).sum, record)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="l1 norm of a record exceeds"):
        query.preprocess_record((), record)


@pytest.mark.parametrize(
    ("bound", "record", "holds"),
    [
        (5.0, [3, -4], True),
        (4.9, [3, -4], False),
        (0.0, [0, 0], True),
        (float(2**31 - 1), [-(2**31), 0], False),
        (float(2**31 - 1), [-(2**63), 2**62], False),
    ],
)
def test_norm_is_checked_exactly(bound, record, holds):
    query = DistributedDiscreteGaussianSumQuery(bound, 0.0)
    record = tf.constant(record, tf.int64)
    if holds:
        np.testing.assert_array_equal(query.preprocess_record((), record).sum, record)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="norm of a record exceeds"):
        query.preprocess_record((), record)


def test_skellam_event_and_average():
    query = DistributedSkellamSumQuery(9.0, 0.5, 2.0, 100)
    assert query.derive_event(()) == SkellamSharesSumEvent(9.0, 1.0, 2.0, 100)
    average = DistributedSkellamAverageQuery(9.0, 5.0, 0.0, denominator=2.0, min_contributors=2)
    result, _, event = average.get_noised_result(
        _sum(average, [tf.constant([1, 4])] * 2), average.initial_global_state()
    )
    np.testing.assert_allclose(result, [1.0, 4.0])
    assert result.dtype == tf.float32
    assert event == SkellamSharesSumEvent(9.0, 5.0, 0.0, 2)
    for bad in (
        {"local_stddev": 2.0**14 + 1},
        {"l1_norm_bound": -1.0},
        {"l1_norm_bound": 2.0**61 + 2.0**10},
        {"min_contributors": 0},
    ):
        arguments = {"l1_norm_bound": 1.0, "l2_norm_bound": 1.0, "local_stddev": 1.0} | bad
        with pytest.raises(ValueError, match="must be"):
            DistributedSkellamSumQuery(**arguments)


def test_skellam_noise_has_its_own_distribution():
    # Of a small variance: zero has e^-m I_0(m), 0.4658; a discrete Gaussian's has 0.3989.
    query = DistributedSkellamSumQuery(1.0, 1.0, 1.0)
    share = query.preprocess_record((), tf.zeros([20_000], tf.int32)).sum.numpy()
    zeros = int(np.sum(share == 0))
    assert stats.binomtest(zeros, 20_000, special.ive(0, 1.0)).pvalue > 1e-9
    assert stats.binomtest(zeros, 20_000, 0.3989).pvalue < 1e-9


@ALL
def test_audit_finds_no_more_than_the_claim_and_finds_a_claim_that_is_too_small(make):
    def bound_and_claim(stddev):
        query = make(100.0, stddev, min_contributors=4)
        # Every coordinate has noise of its own: each is a run. One of four records differs.
        scores = []
        for moved in (1, 0):
            records = [tf.fill([6000], moved), *[tf.zeros([6000], tf.int32)] * 3]
            scores.append(query.get_noised_result(_sum(query, records), ())[0].numpy())
        one = make(1.0, stddev, min_contributors=4).derive_event(())
        event = tfdp.SampledEvent(FullBatchSampling(), one, tfdp.NeighboringRelation.ZERO_OUT)
        claim = RDPAccountant().compose(event).get_epsilon(1e-6)
        return epsilon_lower_bound(*scores, 1e-6, confidence=1 - 1e-7), claim

    (small, _), (large, claim) = bound_and_claim(0.25), bound_and_claim(2.5)
    assert large <= claim
    assert small > claim
