"""precision="exact": records are integers of bounded norm, sums are exact, noise is discrete."""

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp.events import DiscreteGaussianSumEvent
from tfdp.noise import SeededRandomSource
from tfdp.noise.bits import SeededFill
from tfdp.noise.discrete_gaussian import DiscreteGaussian
from tfdp.query import WeightedSumQuery, grid

CLIPS = [1.0, 0.7, math.nextafter(2.0, 0), 1e18, 1e-12]


def exact(clip=1.0, stddev=0.0, **kwargs):
    return tfdp.GaussianSumQuery(clip, stddev, precision="exact", **kwargs)


def integers(record, clip=1.0):
    return [np.asarray(leaf) for leaf in tf.nest.flatten(grid.clip_to_grid(clip, record).integers)]


def square(leaves):
    return sum(int(i) ** 2 for leaf in leaves for i in np.ravel(leaf))


@pytest.mark.parametrize("clip", CLIPS)
def test_grid_is_a_power_of_two_that_leaves_30_to_31_bits(clip):
    step = grid.grid_of(clip)
    assert math.frexp(step)[0] == 0.5
    assert 2**30 <= Fraction(clip) / Fraction(step) < 2**31


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_norms_in_integers_are_within_the_bound(clip, dtype):
    rng = np.random.default_rng(0)
    limit = (Fraction(clip) / Fraction(grid.grid_of(clip))) ** 2
    for size in (2, 3, 3000):
        for scale in (0.5, 1.0, 1.0 + 1e-7, 3.0):
            record = rng.normal(size=size)
            record *= clip * scale / np.linalg.norm(record)
            found = integers(
                [tf.constant(record[: size // 2], dtype), tf.constant(record, dtype)], clip
            )
            assert square(found) <= limit
            if scale == 3 and 1 < size < 50:  # Nor is more lost than the rounding.
                assert square(found) > limit * (1 - Fraction(size, 2**28))


@pytest.mark.parametrize("clip", CLIPS)
def test_rounds_towards_zero_as_the_definition_does(clip):
    # Short records are not scaled, so every operation before the rounding is exact.
    record = np.random.default_rng(1).normal(size=40) * clip / 20
    step = Fraction(grid.grid_of(clip))
    (found,) = integers(tf.constant(record), clip)
    assert found.dtype == np.int64
    assert found.tolist() == [math.trunc(Fraction(x) / step) for x in record.tolist()]


@pytest.mark.parametrize("excess", [0, 1, 5, 2**20, 2**40])
def test_record_that_is_too_long_is_shortened_until_it_is_not(excess):
    record = [2**30, -(2**29), 7, 0, -1]
    limit = sum(i * i for i in record) - excess
    (found,) = grid.shorten([tf.constant(record, tf.int64)], limit)
    assert square([found]) <= limit
    assert square([found]) > limit * (1 - 2.0**-17) - 2**32
    assert np.all(np.sign(found) * np.sign(record) >= 0)
    if not excess:
        assert found.numpy().tolist() == record


def test_sums_of_squares_do_not_wrap_around():
    # Together just below 2^65: as an int64 that is negative, and would pass.
    largest = tf.constant(2**31 - 1, tf.int64)
    record = [tf.fill([2], largest), tf.fill([6], -largest)]
    assert tf.add_n([tf.reduce_sum(tf.square(leaf)) for leaf in record]) < 0
    assert grid.is_longer(record, 2**62 - 1)
    assert not grid.is_longer(record, square(record))
    assert grid.is_longer(record, square(record) - 1)


@pytest.mark.parametrize("largest", [1, 2**16, 2**20, 2**31 - 1])
def test_squares_are_compared_as_whole_numbers(largest):
    # Against Python's integers. Lower halves of the squares add up to more than 32 bits hold.
    rng = np.random.default_rng(largest)
    record = [rng.integers(-largest, largest + 1, 50), rng.integers(-largest, largest + 1, [7, 3])]
    total = square(record)
    assert sum(int(i) ** 2 % 2**32 for leaf in record for i in np.ravel(leaf)) >= min(
        2**32, largest
    )
    for limit in (total - 1, total, total + 1):
        assert bool(grid.is_longer([tf.constant(leaf) for leaf in record], limit)) == (
            total > limit
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_record_that_is_not_finite_is_zero(bad):
    assert square(integers([tf.constant([1.0, bad]), tf.constant([2.0])])) == 0


def test_the_sum_moves_by_exactly_the_record():
    rng = np.random.default_rng(2)
    records = [tf.constant(rng.normal(size=30), tf.float32) for _ in range(20)]
    query = exact(0.3)

    def total(records):
        state = query.initial_sample_state(records[0])
        for record in records:
            state = query.accumulate_record(0.3, state, record)
        return state.integers.numpy()

    for i in (0, 7, 19):
        others = records[:i] + records[i + 1 :]
        np.testing.assert_array_equal(total(records) - total(others), integers(records[i], 0.3)[0])
    # Floating-point sums move by something else.
    float_query = tfdp.GaussianSumQuery(0.3, 0.0)
    clipped = [float_query.preprocess_record(0.3, record) for record in records]
    moved = tf.add_n(clipped) - tf.add_n(clipped[:7] + clipped[8:])
    assert np.any(moved != clipped[7])


def test_noise_is_discrete_and_added_to_integers():
    query = exact(1.0, 1.5, random_source=SeededRandomSource(4))
    state = query.initial_sample_state([tf.zeros([1000]), tf.zeros([4], tf.float64)])
    state = query.accumulate_record(1.0, state, [tf.ones([1000]), tf.ones([4], tf.float64)])
    result, _, event = query.get_noised_result(state, query.initial_global_state())
    step = 2.0**-30
    assert event == DiscreteGaussianSumEvent(1.0, 1.5, step, 2**30, seeded=True)
    fill = SeededFill(4)
    for leaf, total in zip(result, state.integers, strict=True):
        noise = DiscreteGaussian(Fraction(3 * 2**29) ** 2).draw(fill, len(total))
        expected = (total.numpy() + noise) * step
        np.testing.assert_array_equal(leaf, expected.astype(leaf.dtype.as_numpy_dtype))
    assert [leaf.dtype for leaf in result] == [tf.float32, tf.float64]


@pytest.mark.parametrize("clip, stddev", [(1.0, 2.0), (0.7, 0.3), (1e-12, 1e-9), (1e18, 1e16)])
def test_noise_has_its_stddev(clip, stddev):
    query = exact(clip, stddev)
    state = query.initial_sample_state(tf.zeros([100_000]))
    draws = query.get_noised_result(state, query.initial_global_state())[0].numpy()

    def is_likely(scale):
        return stats.kstest(draws / (scale * stddev), "norm").pvalue > 1e-9

    assert is_likely(1)
    assert not is_likely(2 / 3)
    assert not is_likely(3 / 2)


def test_in_a_graph_every_run_draws_anew():
    query = exact(1.0, 1.0)

    @tf.function
    def step(record):
        state = query.accumulate_record(1.0, query.initial_sample_state(record), record)
        return query.get_noised_result(state, query.initial_global_state())[0]

    record = tf.zeros([200, 100])
    first, second = step(record), step(record)
    assert first.shape == (200, 100)
    assert not np.any(first == second)


def test_average_and_nested_queries_are_exact_where_a_part_is():
    average = tfdp.GaussianAverageQuery(
        1.0, noise_multiplier=2.0, denominator=10, precision="exact"
    )
    assert average.numerator_query == exact(1.0, 2.0)
    mixed = tfdp.NestedQuery([average, tfdp.GaussianSumQuery(1.0, 1.0)])
    for query in (average, mixed):
        assert query.needs_separate_records
        assert query.num_norm_groups is None
    assert not tfdp.NestedQuery([tfdp.GaussianSumQuery(1.0, 1.0)]).needs_separate_records
    state = average.accumulate_record(
        1.0, average.initial_sample_state(tf.zeros([2])), tf.constant([3.0, 4.0])
    )
    assert state.integers.numpy().tolist() == [math.trunc(0.6 * 2**30), math.trunc(0.8 * 2**30)]


def test_what_is_not_exact_is_refused():
    with pytest.raises(ValueError, match="'float' or 'exact'"):
        tfdp.GaussianSumQuery(1.0, 1.0, precision="double")
    with pytest.raises(ValueError, match="stddev between"):
        exact(1.0, 2.0**21)
    with pytest.raises(ValueError, match="stddev between"):
        exact(1.0, 2.0**-22)
    with pytest.raises(TypeError, match="off their grid"):
        WeightedSumQuery(exact(), 1.0)
    with pytest.raises(TypeError, match="never changes"):
        exact().preprocess_record(tf.constant(1.0), tf.zeros([2]))
    with pytest.raises(TypeError, match="not a norm-factor query"):
        exact().norm_groups(tf.zeros([2]))
    with pytest.raises(ValueError, match="at most 1073741824 coordinates"):
        exact().initial_sample_state(tf.TensorSpec([2**15, 2**15 + 1], tf.float32))


def test_shape_must_be_known():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def of_any_size(record):
        return exact().preprocess_record(1.0, record)

    with pytest.raises(ValueError, match="shape is known"):
        of_any_size(tf.zeros([2]))
