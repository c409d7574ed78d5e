import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp.events import GaussianSumEvent
from tfdp.noise import SeededRandomSource, staged
from tfdp.query import GaussianSumQuery

NOT_NUMBERS = [True, "1", None, [1.0], 1j]
NOT_FINITE = [math.nan, math.inf, -math.inf]


def _preprocess(query, record):
    return query.preprocess_record(query.derive_sample_params(query.initial_global_state()), record)


def _release(query, records):
    global_state = query.initial_global_state()
    params = query.derive_sample_params(global_state)
    state = query.initial_sample_state(records[0])
    for record in records:
        state = query.accumulate_record(params, state, record)
    return query.get_noised_result(state, global_state)


def test_clips_record_above_norm():
    # |(3, 4)| = 5, clip 1: times 1/5.
    clipped = _preprocess(GaussianSumQuery(1.0, 0.0), tf.constant([3.0, 4.0]))
    np.testing.assert_allclose(clipped, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("record", [[0.6, 0.8], [0.3, -0.4], [0.0, 0.0]])
def test_keeps_record_at_or_below_norm(record):
    clipped = _preprocess(GaussianSumQuery(1.0, 0.0), tf.constant(record, tf.float64))
    # The first is at the bound, where the factor is rounded down.
    np.testing.assert_allclose(clipped, record, rtol=3e-15)


def test_clips_over_all_leaves_together():
    # |(2, (4, 4))| = 6, clip 3: times 1/2. Each leaf alone has norm 2 and 5.7.
    record = {"a": tf.constant(2.0), "b": tf.constant([4.0, 4.0])}
    clipped = _preprocess(GaussianSumQuery(3.0, 0.0), record)
    np.testing.assert_allclose(clipped["a"], 1.0, rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [2.0, 2.0], rtol=1e-6)


def test_sums_clipped_records():
    # clip 5: (3, 4) stays; (0, 50) becomes (0, 5); (-30, 40) of norm 50 becomes (-3, 4).
    records = [tf.constant(r) for r in ([3.0, 4.0], [0.0, 50.0], [-30.0, 40.0])]
    result, state, event = _release(GaussianSumQuery(5.0, 0.0), records)
    np.testing.assert_allclose(result, [0.0, 13.0], atol=2e-5)
    assert state == (5.0, 0.0)
    assert event == GaussianSumEvent(5.0, 0.0)


def test_keeps_coordinates_whose_square_underflows():
    # 1e-30 squared is zero in float32: the norm is taken as zero, and the record is below the clip.
    clipped = _preprocess(GaussianSumQuery(1.0, 0.0), tf.constant([1e-30, 0.0]))
    np.testing.assert_allclose(clipped, [1e-30, 0.0], rtol=1e-6)


def test_float64_norm_may_be_larger_than_float32_allows():
    # |(3e30, 4e30)| = 5e30; its square overflows in float32 only.
    query = GaussianSumQuery(1.0, 0.0)
    wide = tf.constant([3e30, 4e30], tf.float64)
    np.testing.assert_allclose(_preprocess(query, wide), [0.6, 0.8], rtol=1e-12)
    np.testing.assert_array_equal(_preprocess(query, tf.cast(wide, tf.float32)), [0.0, 0.0])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.int32])
def test_records_that_cannot_be_held_to_a_bound_are_refused(dtype):
    query = GaussianSumQuery(1.0, 0.0)
    with pytest.raises(TypeError, match="float32 or float64"):
        _preprocess(query, tf.constant([3, 4], dtype))
    with pytest.raises(TypeError, match="float32 or float64"):
        query.initial_sample_state(tf.zeros([2], dtype))


@pytest.mark.parametrize("clip", [1e-13, 1e19])
def test_clip_norms_that_float32_cannot_hold_are_refused(clip):
    with pytest.raises(ValueError, match="l2_norm_clip must be finite, at least 1e-12"):
        GaussianSumQuery(clip, 0.0)


def test_clip_norm_may_come_from_a_tensor():
    # The global state of an adaptive query holds tensors.
    query = GaussianSumQuery(1.0, 0.0)
    clipped = query.preprocess_record(tf.constant(2.0), tf.constant([3.0, 4.0], tf.float64))
    np.testing.assert_allclose(clipped, [1.2, 1.6], rtol=1e-12)


def test_event_is_none_where_the_global_state_is_symbolic():
    query = GaussianSumQuery(1.0, 0.5)
    events = []

    @tf.function
    def release(clip, stddev):
        state = query.initial_global_state()._replace(l2_norm_clip=clip, stddev=stddev)
        result, _, event = query.get_noised_result(tf.zeros([2]), state)
        events.append(event)
        return result

    release(tf.constant(1.0), tf.constant(0.5))
    assert events == [None]


def test_event_has_the_values_of_the_global_state():
    query = GaussianSumQuery(1.0, 0.5)
    state = query.initial_global_state()._replace(l2_norm_clip=tf.constant(4.0), stddev=2.0)
    assert query.derive_event(state) == GaussianSumEvent(4.0, 2.0)


def test_event_says_where_noise_is_seeded():
    query = GaussianSumQuery(1.0, 0.5, SeededRandomSource(0))
    event = query.derive_event(query.initial_global_state())
    assert event == GaussianSumEvent(1.0, 0.5, seeded=True)
    assert event.noise_multiplier == 0


def test_seeded_noise_can_be_repeated():
    draws = [
        _release(GaussianSumQuery(1.0, 0.5, SeededRandomSource(seed)), [tf.zeros([5])])[0]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.all(draws[0] != draws[2])


@pytest.mark.parametrize("mode", ["eager", "graph", "staged"])
def test_noise_has_the_stddev_on_every_leaf(mode, check_stddev, check_independent):
    # stddev is absolute, whatever the clip is.
    query = GaussianSumQuery(l2_norm_clip=0.1, stddev=3.0)

    def release(sums):
        function = staged if mode == "staged" else lambda fn, *args: fn(*args)
        return function(query.get_noised_result, sums, query.initial_global_state())[0]

    release = release if mode == "eager" else tf.function(release)

    sums = {"a": 7.0 * tf.ones([40, 25]), "b": tf.zeros([1000]), "c": tf.zeros([700], tf.float64)}
    first, second = release(sums), release(sums)
    for noised in (first, second):
        check_stddev(noised["a"] - 7.0, 3.0)
        check_stddev(noised["b"], 3.0)
        check_stddev(noised["c"], 3.0)
        check_independent(noised["a"], noised["b"])
    for name in sums:
        check_independent(first[name], second[name])


def test_queries_without_a_source_do_not_repeat_each_other(check_independent):
    left, _, _ = _release(GaussianSumQuery(1.0, 1.0), [tf.zeros([1000])])
    right, _, _ = _release(GaussianSumQuery(1.0, 1.0), [tf.zeros([1000])])
    check_independent(left, right)


class NeverAsked(SeededRandomSource):
    def normal(self, shape, dtype):
        raise AssertionError("Nothing is to be drawn.")


def test_zero_stddev_adds_nothing():
    query = GaussianSumQuery(1.0, 0.0, random_source=NeverAsked(0))
    result, _, event = _release(query, [tf.constant([0.5])])
    np.testing.assert_array_equal(result, [0.5])
    assert event.noise_multiplier == 0


@pytest.mark.parametrize("name", ["l2_norm_clip", "stddev"])
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_refuses_what_is_not_a_number(name, value):
    arguments = {"l2_norm_clip": 1.0, "stddev": 1.0, name: value}
    with pytest.raises(TypeError, match=f"{name} must be a real number. Received: {name}="):
        GaussianSumQuery(**arguments)


@pytest.mark.parametrize("name", ["l2_norm_clip", "stddev"])
@pytest.mark.parametrize("value", [*NOT_FINITE, -1.0])
def test_refuses_numbers_out_of_range(name, value):
    arguments = {"l2_norm_clip": 1.0, "stddev": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name} must be finite.*Received: {name}="):
        GaussianSumQuery(**arguments)


def test_refuses_a_clip_of_zero():
    with pytest.raises(ValueError, match="l2_norm_clip must be finite, greater than 0"):
        GaussianSumQuery(0.0, 1.0)


@pytest.mark.parametrize("source", [0, "system", np.random.default_rng()])
def test_refuses_what_is_not_a_random_source(source):
    with pytest.raises(TypeError, match="random_source must be a tfdp.noise.RandomSource"):
        GaussianSumQuery(1.0, 1.0, source)


def test_takes_integers_and_numpy_numbers_as_floats():
    query = GaussianSumQuery(np.float32(2.0), 3)
    assert (query.l2_norm_clip, query.stddev) == (2.0, 3.0)
    assert {type(query.l2_norm_clip), type(query.stddev)} == {float}


def test_structure_mismatch_prints_both_structures():
    query = GaussianSumQuery(1.0, 1.0)
    state = query.initial_sample_state([tf.zeros([2]), tf.zeros([3])])
    with pytest.raises(ValueError) as error:
        query.accumulate_record(1.0, state, [tf.zeros([2])])
    assert str(error.value) == (
        "Structures differ.\n"
        "  Expected: [\"<dtype: 'float32'>(2,)\", \"<dtype: 'float32'>(3,)\"]\n"
        "  Received: [\"<dtype: 'float32'>(2,)\"]"
    )


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("stddev", [0.1, 1.0, 1 / 3, 1.1, 2.0**-20, 12345.678])
def test_noise_is_no_less_than_the_event_says(dtype, stddev):
    """A third is more than the nearest number of float32, and 0.1 less."""

    class Ones(SeededRandomSource):
        def normal(self, shape, dtype):
            return tf.ones(shape, dtype)

    query = GaussianSumQuery(1.0, stddev, random_source=Ones(0))
    noise, _, event = _release_of_nothing(query, dtype)
    assert event.noise_stddev == stddev
    assert stddev <= float(noise[0]) <= stddev * (1 + (1e-6 if dtype == tf.float32 else 1e-15))


def _release_of_nothing(query, dtype):
    state = query.initial_sample_state(tf.zeros([1], dtype))
    return query.get_noised_result(state, query.initial_global_state())
