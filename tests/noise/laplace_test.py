"""Laplace draws: their quantiles, tails and bits, against exact logarithms."""

import math

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.noise import SeededRandomSource, SystemRandomSource, staged
from tfdp.noise.gaussian import uniforms_from_words
from tfdp.noise.laplace import laplace_from_words

COUNT = 200_000


@pytest.fixture(scope="module")
def draws():
    return SystemRandomSource().laplace([COUNT], tf.float64).numpy()


def _words(*words):
    return np.array(words, np.uint32)[:, None]


@pytest.mark.parametrize("zeros", [0, 1, 8, 20, 30, 31, 40, 61, 70, 92, 93])
def test_draw_is_the_quantile_of_all_of_its_bits(zeros):
    # `zeros` zeros before the first one in 93 bits, of which v has the last 62.
    number = (1 << (93 - zeros)) >> 1 | (0b1011 << 40 if zeros < 40 else 0)
    low = (1 << 31) - 1
    words = _words(number >> 62, number >> 31 & low, number & low)
    u = uniforms_from_words(words).numpy()[0]
    draw = laplace_from_words(words, tf.float64).numpy()[0]
    assert draw == pytest.approx(-float(mpmath.log(mpmath.mpf(u))), rel=1e-14)
    mirrored = words | np.array([[0], [1 << 31], [0]], np.uint32)
    assert laplace_from_words(mirrored, tf.float64).numpy()[0] == -draw


def test_uniforms_are_uniform_and_have_a_tail():
    words = np.random.default_rng(0).integers(0, 2**32, [3, COUNT], np.uint32)
    u = uniforms_from_words(words).numpy()
    assert u.min() > 0 and u.max() <= 1
    assert stats.kstest(u, "uniform").pvalue > 1e-6
    words[0] &= np.uint32(2**31 + 1023)  # 21 zeros first.
    rest = uniforms_from_words(words).numpy() * 2**21
    assert stats.kstest(rest[rest <= 1], "uniform").pvalue > 1e-6
    smallest = uniforms_from_words(np.zeros([3, 1], np.uint32)).numpy()[0]
    assert 2.0**-94 <= smallest <= 2.0**-92


def test_distribution_is_laplace(draws):
    assert stats.kstest(draws, "laplace").pvalue > 1e-6
    for wrong in (1.1, 1 / 1.1):
        assert stats.kstest(draws * wrong, "laplace").pvalue < 1e-6


@pytest.mark.parametrize("threshold", [2.0, 5.0, 8.0])
def test_tails_are_those_of_a_laplace(draws, threshold):
    for side in (draws, -draws):
        low, high = stats.binom.interval(1 - 1e-9, COUNT, math.exp(-threshold) / 2)
        assert low <= np.count_nonzero(side > threshold) <= high


def test_draws_are_independent(draws, check_independent):
    check_independent(draws[:-1], draws[1:])
    check_independent(np.abs(draws[:-1]), np.abs(draws[1:]))


def test_every_run_of_a_graph_draws_anew_and_a_seed_repeats():
    @tf.function
    def draw():
        return staged(lambda: SystemRandomSource().laplace([50], tf.float32))

    first, second = draw().numpy(), draw().numpy()
    assert len(np.unique([first, second])) == 100
    seeded = [SeededRandomSource(3).laplace([5], tf.float32).numpy() for _ in range(2)]
    np.testing.assert_array_equal(*seeded)
    np.testing.assert_allclose(
        seeded[0], SeededRandomSource(3).laplace([5], tf.float64).numpy(), rtol=1e-6
    )


def test_refuses_other_dtypes():
    with pytest.raises(TypeError, match="float32 or float64"):
        SystemRandomSource().laplace([2], tf.float16)
