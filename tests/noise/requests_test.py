"""tfdp.noise.requests: whoever asks has words, or draws, that nobody else has."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import bits, gaussian
from tfdp.noise.requests import Pool, Requests


def _filler(number):
    def fill(words):
        words[:] = number

    return fill


def test_parts_are_written_by_whom_asked_for_them_and_begin_at_multiples():
    requests = Requests()
    parts = [requests.add(_filler(i), size) for i, size in enumerate([3, 0, 16, 17, 1], start=1)]
    assert [part.start for part in parts] == [0, 16, 16, 32, 64]
    words = requests.write()
    assert words.size == requests.size == 65
    for i, (part, size) in enumerate(zip(parts, [3, 0, 16, 17, 1], strict=True), start=1):
        np.testing.assert_array_equal(words[part], np.full(size, i))


def test_nothing_that_is_asked_for_takes_no_words():
    assert Requests().write().size == 0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_draws_of_a_pool_are_those_of_its_words_one_after_another(dtype):
    fill, pool, rows = bits.SeededFill(3), Pool(dtype), gaussian.words_per_pair(dtype)
    expected = np.zeros(rows * 4, np.uint32)
    bits.SeededFill(3)(expected)
    words = tf.constant(expected)
    taken = [pool.take(fill, size, words, gaussian.normals_from_words) for size in (3, 0, 4)]
    draws = gaussian.normals_from_words(tf.reshape(words, [rows, -1]), dtype)
    # Seven draws are made of four pairs: two rows of four, one behind the other.
    np.testing.assert_array_equal(tf.concat(taken, 0), draws[:7])
    np.testing.assert_array_equal(pool.write(), expected)


def test_pool_is_filled_by_one_source():
    first, second = bits.SeededFill(1), bits.SeededFill(2)
    pool, words = Pool(tf.float32), tf.zeros([9], tf.uint32)
    assert pool.take(first, 2, words, gaussian.normals_from_words) is not None
    assert pool.take(second, 2, words, gaussian.normals_from_words) is None
    assert pool.take(first, 2, words, gaussian.normals_from_words) is not None
    assert pool.write().size == 2 * gaussian.words_per_pair(tf.float32)


def test_pool_that_nobody_takes_from_draws_nothing():
    assert Pool(tf.float64).write().size == 0
