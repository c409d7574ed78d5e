"""Rotation, rounding and modulus, each against its definition."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy import linalg, stats

from tfdp.query import encoding, rounded_norm_bound

ALARM = 1e-9


@pytest.mark.parametrize("length", [1, 2, 8, 64])
def test_hadamard_is_its_matrix(length):
    vector = np.random.default_rng(0).normal(size=length)
    expected = linalg.hadamard(length) @ vector / math.sqrt(length)
    np.testing.assert_allclose(encoding.hadamard(tf.constant(vector)), expected, atol=1e-12)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 33])
def test_rotation_keeps_norms_and_comes_back(number):
    vector = tf.constant(np.random.default_rng(1).normal(size=number))
    length = encoding.padded_length(number)
    assert number <= length < 2 * number
    sign = encoding.signs(7, 3, length)
    rotated = encoding.rotate(vector, sign)
    np.testing.assert_allclose(tf.norm(rotated), tf.norm(vector))
    np.testing.assert_allclose(encoding.rotate_back(rotated, sign, number), vector, atol=1e-12)


def test_signs_are_the_same_everywhere_and_new_in_every_step():
    graph = tf.function(lambda step: encoding.signs(5, step, 4096))
    compiled = tf.function(lambda step: encoding.signs(5, step, 4096), jit_compile=True)
    eager = encoding.signs(5, 3, 4096).numpy()
    np.testing.assert_array_equal(eager, graph(tf.constant(3, tf.int64)))
    np.testing.assert_array_equal(eager, compiled(tf.constant(3, tf.int64)))
    for other in (encoding.signs(5, 4, 4096), encoding.signs(6, 3, 4096)):
        assert abs(np.mean(eager * other)) < 6.2 / 64
    assert abs(np.mean(eager)) < 6.2 / 64
    assert set(eager) == {-1.0, 1.0}


def test_rotated_records_have_no_large_coordinate():
    # Sums of independent signs: beyond t standard deviations with probability 2 exp(-t^2 / 2).
    length = 2**12
    t = math.sqrt(2 * math.log(2 * length / ALARM))
    spread = np.random.default_rng(0).normal(size=length)
    for vector in (np.eye(1, length)[0], np.ones(length), spread):
        vector = vector / np.linalg.norm(vector)
        rotated = encoding.rotate(tf.constant(vector), encoding.signs(0, 0, length))
        assert np.max(np.abs(rotated)) < t / math.sqrt(length)


def always(integers):
    return tf.constant(True)


def test_rounding_has_no_bias_and_no_other_values():
    vector = tf.constant([0.3, -0.3, 2.0, -7.75, 0.0, 123456.5], tf.float64)
    draw = tf.function(
        lambda seeds: tf.map_fn(
            lambda seed: encoding.round_at_random(vector, always, seed),
            seeds,
            fn_output_signature=tf.int64,
        )
    )
    found = draw(tf.constant(np.random.default_rng(0).integers(2**31, size=[6000, 2]), tf.int32))
    found = found.numpy()
    assert np.all(np.isin(found - np.floor(vector), (0, 1)))
    np.testing.assert_array_equal(found[:, [2, 4]], np.tile([2, 0], [6000, 1]))
    for column, rest in zip(found.T, vector.numpy() - np.floor(vector), strict=True):
        ups = int(np.sum(column > np.floor(np.mean(column)))) if 0 < rest < 1 else 0
        if ups:
            assert stats.binomtest(ups, 6000, rest).pvalue > ALARM
            assert stats.binomtest(ups, 6000, rest * 0.8).pvalue < ALARM
    # Coordinates are rounded each for itself.
    assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 6.2 / math.sqrt(6000)


def test_what_rounding_returns_is_always_within_the_bound():
    vector = tf.fill([64], tf.constant(0.5, tf.float64))

    def within(square):
        return lambda integers: tf.reduce_sum(integers**2) <= square

    seeds = [tf.constant([seed, 0]) for seed in range(30)]
    squares = [
        int(tf.reduce_sum(encoding.round_at_random(vector, within(32), seed) ** 2))
        for seed in seeds
    ]
    # Without a bound half of them have more than 32.
    assert max(squares) == 32 and min(squares) > 10
    # What hardly ever happens is not waited for: towards zero.
    assert not np.any(encoding.round_at_random(-vector, within(3), seeds[0]))


@pytest.mark.parametrize("length", [1, 16, 1024])
@pytest.mark.parametrize("norm", [0.5, 10.0, 1000.0])
@pytest.mark.parametrize("beta", [0.0, 0.1, encoding.LARGEST_BETA])
def test_rounded_norm_keeps_its_bound_as_often_as_it_says(length, norm, beta):
    rng = np.random.default_rng(length)
    bound = rounded_norm_bound(norm, length, beta)
    broken = 0
    for kind in ("half", "random"):
        vector = np.full(length, 0.5) if kind == "half" else rng.normal(size=length)
        vector *= norm / np.linalg.norm(vector)
        below = np.floor(vector)
        rounded = below + (rng.random([2000, length]) < vector - below)
        broken = np.sum(np.linalg.norm(rounded, axis=1) > bound * (1 + 1e-12))
        assert stats.binomtest(int(broken), 2000, beta, alternative="greater").pvalue > ALARM


def test_rounded_norm_by_hand():
    assert rounded_norm_bound(3.0, 16, 0.0) == 7.0
    # 100 + 4 + sqrt(2 * 1/2) (10 + 2) = 116.
    assert rounded_norm_bound(10.0, 16) == pytest.approx(math.sqrt(116))
    for bad in ({"beta": 0.7}, {"beta": -0.1}, {"norm": 0.0}, {"num_coordinates": 0}):
        with pytest.raises(ValueError, match="must be"):
            rounded_norm_bound(**({"norm": 1.0, "num_coordinates": 4} | bad))


@pytest.mark.parametrize("bits", [2, 8, 32, 62])
def test_wrapping_is_that_of_the_modulus(bits):
    values = [0, 1, -1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), -(2 ** (bits - 1)) - 1, 2**62, -5]
    half = 2 ** (bits - 1)
    expected = [(value + half) % 2**bits - half for value in values]
    np.testing.assert_array_equal(encoding.wrap(tf.constant(values, tf.int64), bits), expected)
