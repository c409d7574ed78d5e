"""Real numbers through sums of integers: what comes out, what bounds it, and in training."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.events import GaussianSharesSumEvent, IntegerGaussianSumEvent, SkellamSharesSumEvent
from tfdp.query import DiscretizedSumQuery, rounded_norm_bound

CLIP = 1.5
LIKE = {"a": np.zeros((2, 2)), "b": (np.zeros(3), np.zeros(()))}


def integers(scale=1e4, stddev=0.0, length=8, kind="central", clip=CLIP, contributors=1):
    bound = rounded_norm_bound(scale * clip, length)
    if kind == "central":
        return tfdp.DiscreteGaussianSumQuery(bound, stddev)
    if kind == "skellam":
        return tfdp.DistributedSkellamSumQuery(
            bound * min(bound, math.sqrt(length)), bound, stddev, contributors
        )
    return tfdp.DistributedDiscreteGaussianSumQuery(bound, stddev, contributors)


def discretized(scale=1e4, clip=CLIP, bits=32, **kwargs):
    return DiscretizedSumQuery(integers(scale, clip=clip, **kwargs), clip, scale, bits)


KINDS = pytest.mark.parametrize("kind", ["central", "gaussian", "skellam"])


def _records(count=5, size=1.0, dtype=tf.float32):
    rng = np.random.default_rng(count)
    return [
        tf.nest.map_structure(
            lambda leaf: tf.constant(size * rng.normal(size=leaf.shape), dtype), LIKE
        )
        for _ in range(count)
    ]


def _flat(structure):
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(structure)])


def _sum(query, records, state=None):
    params = query.derive_sample_params(state or query.initial_global_state())
    sample = query.initial_sample_state(records[0])
    for record in records:
        sample = query.accumulate_record(params, sample, record)
    return sample


def _result(query, records):
    return query.get_noised_result(_sum(query, records), query.initial_global_state())


@KINDS
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_result_is_the_sum_of_clipped_records_up_to_rounding(kind, dtype):
    records, query = _records(dtype=dtype), discretized(kind=kind)
    result, state, event = _result(query, records)
    tf.nest.assert_same_structure(result, records[0])
    assert all(leaf.dtype == dtype for leaf in tf.nest.flatten(result))
    flat = np.stack([_flat(record) for record in records])
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    expected = np.sum(flat * np.minimum(1, CLIP / norms), axis=0)
    # Each record is off by sqrt(d) / scale at most.
    assert np.linalg.norm(_flat(result) - expected) < 5 * math.sqrt(8) / 1e4
    assert event == query.derive_event(query.initial_global_state())
    assert state.step == 1


@KINDS
def test_nothing_is_lost_by_the_modulus_unless_the_sum_exceeds_it(kind):
    # Rounding is random: two results are apart by sqrt(d) / scale for every record at most.
    records = _records(20)

    def result(bits):
        return _flat(_result(discretized(scale=50.0, bits=bits, kind=kind, length=8), records)[0])

    assert np.linalg.norm(result(62) - result(12)) < 2 * 20 * math.sqrt(8) / 50
    lost = np.linalg.norm(result(62) - result(4))
    assert lost > 2 * 20 * math.sqrt(8) / 50


@KINDS
def test_modular_sum_is_the_sum_in_the_modulus(kind):
    # The same integers, added up modulo 2^10 and 2^62, are the same result where they fit.
    wide, narrow = (discretized(scale=20.0, bits=bits, kind=kind) for bits in (62, 10))
    sample = _sum(wide, _records(12))
    total = sample.integers if kind == "central" else sample.integers.sum
    assert np.max(np.abs(total)) < 2**9
    shifted = sample._replace(
        integers=tf.nest.map_structure(
            lambda leaf: leaf + 2**10 * tf.range(8, dtype=tf.int64) if leaf.shape.rank else leaf,
            sample.integers,
        )
    )
    state = wide.initial_global_state()
    expected = _flat(wide.get_noised_result(sample, state)[0])
    np.testing.assert_array_equal(_flat(narrow.get_noised_result(shifted, state)[0]), expected)
    # A record that is sent holds numbers of so many bits.
    noisy = discretized(scale=20.0, bits=10, kind=kind, stddev=1e4)
    sent = noisy.preprocess_record(noisy.derive_sample_params(state), _records(1)[0]).integers
    sent = sent if kind == "central" else sent.sum
    assert np.min(sent) >= -(2**9) and np.max(sent) < 2**9


@KINDS
def test_no_record_exceeds_the_bound_of_the_integers(kind):
    rng = np.random.default_rng(0)
    for scale in (0.7, 1e6):
        query = discretized(scale=scale, kind=kind)
        preprocess = tf.function(
            lambda r, query=query: (
                query.preprocess_record(
                    query.derive_sample_params(query.initial_global_state()), r
                ).integers
            )
        )
        for size in (1e-3, 1.0, 1e10, 3e37):
            values = rng.normal(size=8) * size
            record = {
                "a": tf.constant(values[:4].reshape(2, 2), tf.float32),
                "b": (tf.constant(values[4:7], tf.float32), tf.constant(values[7], tf.float32)),
            }
            found = preprocess(record)
            found = found.numpy() if kind == "central" else found.sum.numpy()
            bound = query.sum_query.l2_norm_bound
            assert sum(int(i) ** 2 for i in found) <= bound**2
            if size > 1e30:  # Squares that overflow make nothing of a record.
                assert not np.any(found)
            elif scale == 1e6:
                assert np.any(found)


@KINDS
def test_as_many_records_are_needed_as_bring_the_noise(kind):
    needed = discretized(kind=kind, contributors=3).min_contributors
    assert needed == (0 if kind == "central" else 3)


def test_records_may_hold_pythons_numbers():
    query = discretized()
    params = query.derive_sample_params(query.initial_global_state())
    sample = query.initial_sample_state([0.0, 0.0])
    for record in ([0.25, -0.5], [0.5, -0.5]):
        sample = query.accumulate_record(params, sample, record)
    result, _, _ = query.get_noised_result(sample, query.initial_global_state())
    assert [leaf.shape for leaf in result] == [[], []]
    np.testing.assert_allclose(result, [0.75, -1.0], atol=2 * math.sqrt(2) / 1e4)


@KINDS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_record_that_is_not_finite_is_zero_and_brings_its_share(kind, bad):
    record = tf.nest.map_structure(lambda leaf: tf.fill(leaf.shape, np.float32(bad)), LIKE)
    query = discretized(kind=kind)
    sample = _sum(query, [record])
    assert all(np.all(leaf == 0) for leaf in tf.nest.flatten(_result(query, [record])[0]))
    if kind != "central":
        assert sample.integers.contributors == 1
        noisy = _sum(discretized(kind=kind, stddev=1000.0), [record])
        assert np.all(noisy.integers.sum.numpy() != 0)


@KINDS
def test_noise_is_that_of_the_event_in_the_units_of_the_records(kind, check_stddev):
    n, scale, stddev = 4, 100.0, 300.0
    integers_sum = integers(scale, stddev, 1024, kind, contributors=n)
    query = DiscretizedSumQuery(integers_sum, CLIP, scale)
    records = [tf.zeros([700])] * n
    result = _result(query, records)[0]
    check_stddev(result, stddev / scale * (1 if kind == "central" else 2))
    event = query.derive_event(query.initial_global_state())
    assert (
        type(event)
        is {
            "central": IntegerGaussianSumEvent,
            "gaussian": GaussianSharesSumEvent,
            "skellam": SkellamSharesSumEvent,
        }[kind]
    )
    assert event.l2_norm_bound == integers_sum.l2_norm_bound


def test_is_a_part_of_a_nested_query():
    nested = tfdp.NestedQuery([discretized(kind="gaussian"), tfdp.GaussianSumQuery(1.0, 0.0)])
    records = [[record, tf.constant([2.0])] for record in _records(3)]
    (result, one), state, event = _result(nested, records)
    expected = _flat(_result(discretized(), [record for record, _ in records])[0])
    np.testing.assert_allclose(_flat(result), expected, atol=3 * math.sqrt(8) / 1e4 * 2)
    np.testing.assert_allclose(one, [3.0], rtol=1e-6)
    assert isinstance(event.events[0], GaussianSharesSumEvent)
    assert state[0].step == 1


def test_sums_that_merge_are_of_one_structure():
    query = discretized()
    left, right = _sum(query, _records(2)), _sum(query, _records(3))
    merged = query.merge_sample_states(left, right)
    np.testing.assert_array_equal(merged.integers, left.integers + right.integers)
    with pytest.raises((TypeError, ValueError), match="Structures differ"):
        query.merge_sample_states(left, _sum(query, [tf.zeros([8])]))
    flat, square = (_sum(query, [tf.zeros(shape)]) for shape in ([8], [2, 4]))
    with pytest.raises(ValueError, match="Shapes or dtypes differ"):
        query.merge_sample_states(flat, square)


def test_refuses_a_bound_without_room_for_rounding():
    query = DiscretizedSumQuery(tfdp.DiscreteGaussianSumQuery(15.0, 1.0), CLIP, 10.0)
    with pytest.raises(ValueError, match=r"l2_norm_bound of 15\.6"):
        query.initial_sample_state(tf.zeros([8]))
    for other in (tfdp.GaussianSumQuery(1.0, 1.0), None):
        with pytest.raises(TypeError, match="sum_query must be one of"):
            DiscretizedSumQuery(other, CLIP, 10.0)
    for bad in ({"scale": 0.0}, {"l2_norm_clip": -1.0}, {"modulus_bits": 1}, {"modulus_bits": 63}):
        arguments = {"sum_query": integers(), "l2_norm_clip": CLIP, "scale": 10.0} | bad
        with pytest.raises(ValueError, match="must be"):
            DiscretizedSumQuery(**arguments)
    with pytest.raises(TypeError, match="rotation_seed"):
        DiscretizedSumQuery(integers(), CLIP, 10.0, rotation_seed="a")
    with pytest.raises(ValueError, match="known when a graph is built"):
        discretized().initial_sample_state(tf.TensorSpec([None], tf.float32))


def test_refuses_an_l1_bound_that_records_within_the_l2_bound_exceed():
    # They would be an error that depends on the data, or nothing under XLA.
    l2 = rounded_norm_bound(10.0 * CLIP, 8)
    for l1, fits in ((l2 * math.sqrt(8), True), (l2 * math.sqrt(8) * 0.99, False), (l2, False)):
        query = DiscretizedSumQuery(tfdp.DistributedSkellamSumQuery(l1, l2, 1.0), CLIP, 10.0)
        if fits:
            query.initial_sample_state(tf.zeros([8]))
            continue
        for call in (query.initial_sample_state, lambda r, q=query: _sum(q, [r])):
            with pytest.raises(ValueError, match="l1_norm_bound of"):
                call(tf.zeros([8]))
    # Few coordinates of few units: |k| <= k^2 is the smaller bound.
    l2 = rounded_norm_bound(1.0, 1024)
    sums = tfdp.DistributedSkellamSumQuery(l2 * min(l2, 32), l2, 1.0)
    DiscretizedSumQuery(sums, 1.0, 1.0).initial_sample_state(tf.zeros([1024]))


@KINDS
def test_trains_and_a_broken_record_changes_no_number_of_shares(kind):
    x = np.array([[1.0, 2.0], [-3.0, 0.5], [0.1, 0.1], [np.nan, 0.0]], np.float32)
    variable = keras.Variable(np.zeros([2], np.float32))
    query = DiscretizedSumQuery(integers(1e5, 0.0, 2, kind, contributors=4), CLIP, 1e5)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), tfdp.NormalizedQuery(query, 4.0))

    @tf.function(autograph=False)
    def step():
        optimizer.private_step(lambda r: tf.reduce_sum(r @ variable[:, None]), [variable], x)

    step()
    kept = x[:3] * np.minimum(1, CLIP / np.linalg.norm(x[:3], axis=1, keepdims=True))
    np.testing.assert_allclose(variable.numpy(), -kept.sum(0) / 4, atol=1e-4)
    # What XLA cannot compile is not compiled.
    tf.function(
        lambda: optimizer.private_step(
            lambda r: tf.reduce_sum(r @ variable[:, None]), [variable], x, jit_compile=True
        ),
        autograph=False,
    )()
    np.testing.assert_allclose(variable.numpy(), -kept.sum(0) / 2, atol=2e-4)
    entries = list(optimizer.ledger)
    assert sum(entry.count for entry in entries) == 2
    assert entries[0].event.event == query.derive_event(query.initial_global_state())


def test_masked_rows_bring_no_share():
    query = discretized(kind="gaussian", contributors=3, length=2)
    variable = tf.Variable([0.0, 0.0])
    x = tf.constant([[1.0, 2.0], [3.0, 0.0], [0.0, np.nan], [1.0, 1.0]])
    found = tfdp.clipped_gradient_sum(
        lambda r: tf.reduce_sum(r * variable), [variable], x, query, mask=[True, True, True, False]
    )
    assert found.sample_state.integers.contributors == 3
