import itertools

import mpmath
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp.noise import gaussian

DTYPES = {"float32": (2, 1, 4e-7), "float64": (3, 2, 8e-16)}  # Radius and angle words, error.
# What is special: ends, both signs, the quarters of the angle.
EDGES = (0, 1, 0x3FFFFFFF, 0x40000000, 0x7FFFFFFF, 0x80000000, 0xC0000000, 0xFFFFFFFF)


def _words(name, count, seed=0):
    rows = sum(DTYPES[name][:2])
    return np.random.default_rng(seed).integers(0, 2**32, (rows, count), np.uint32)


def _edges(name):
    rows = sum(DTYPES[name][:2])
    return np.array(list(itertools.product(EDGES, repeat=min(rows, 3))), np.uint32).T[
        [0, 1, 2][:rows] if rows == 3 else [0, 1, 1, 2, 2]
    ]


def _draws(words, name, mode="xla", size=None):
    def function():
        return gaussian.normals_from_words(tf.constant(words), name, size)

    if mode != "eager":
        function = tf.function(function, jit_compile=mode == "xla")
    return function().numpy()


def _exact(column, name):
    """The pair of one column of words, with 60 digits."""
    radius_words, angle_words = column[: DTYPES[name][0]], column[DTYPES[name][0] :]
    with mpmath.workdps(60):
        # How many zeros: in 31 bits of the first word, then of the others' products.
        number = radius_words[0] % 2**31
        for word in reversed(radius_words[1:]):
            number = number * 2**31 + word * gaussian._SPREAD % 2**31
        zeros = 31 * len(radius_words) - number.bit_length()
        # 31 bits of each of the others, and half a unit.
        units = 0
        for word in radius_words[1:]:
            units = units * 2**31 + word % 2**31
        v = (mpmath.mpf(units) + 0.5) / 2 ** (31 * (len(radius_words) - 1))
        radius = mpmath.sqrt(2 * (zeros * mpmath.log(2) - mpmath.log1p(-v / 2)))
        # A sign and 31 bits, 31 more, and half a unit; half a turn in all.
        units = angle_words[0] - (2**32 if angle_words[0] >= 2**31 else 0)
        for word in angle_words[1:]:
            units = units * 2**31 + word % 2**31
        bits = 32 + 31 * (len(angle_words) - 1)
        angle = (units + mpmath.mpf(0.5)) / 2**bits * mpmath.pi
        side = -1 if radius_words[1] >= 2**31 else 1
        return [side * radius * mpmath.cos(angle), radius * mpmath.sin(angle)]


def _relative_error(draws, words, name):
    exact = np.array([_exact([int(w) for w in column], name) for column in words.T]).T.reshape(-1)
    errors = [abs(mpmath.mpf(float(d)) / e - 1) for d, e in zip(draws, exact, strict=True)]
    return float(max(errors))


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("name", DTYPES)
def test_draws_are_the_exact_function_of_their_words(name, mode):
    words = np.concatenate([_edges(name), _words(name, 2000)], axis=1)
    draws = _draws(words, name, mode)
    error = DTYPES[name][2]
    assert _relative_error(draws, words, name) < error
    assert _relative_error(draws * (1 + 2 * error), words, name) > error


def _words_with_zeros(name, zeros, count, seed=0):
    """Random words whose number begins with at least so many zeros, `zeros` [count]."""
    words = _words(name, count, seed)
    inverse = pow(gaussian._SPREAD, -1, 2**31)
    number = [int(n) >> int(z) for n, z in zip(_numbers(name, count, seed), zeros, strict=True)]
    for row in [*range(1, DTYPES[name][0]), 0]:
        low = np.array([n % 2**31 for n in number], np.uint64)
        low = low * inverse % 2**31 if row else low
        words[row] = (words[row] & 0x80000000) | low.astype(np.uint32)
        number = [n >> 31 for n in number]
    return words


def _numbers(name, count, seed):
    parts = np.random.default_rng([seed, 1]).integers(0, 2**31, (DTYPES[name][0], count))
    return sum(parts[k].astype(object) << (31 * k) for k in range(len(parts)))


@pytest.mark.parametrize("name", DTYPES)
def test_draws_are_accurate_far_out_and_near_zero(name):
    # Radii of 5 to 9 standard deviations, below 1e-3, and directions along the axes are too rare to
    # be met by chance.
    shifts = np.arange(500) % 32
    far = _words_with_zeros(name, np.arange(500) % (31 * DTYPES[name][0]), 500, 1)
    near, across = _words(name, 500, 2), _words(name, 500, 3)
    near[0] |= 0x40000000
    near[1] = (near[1] & 0x80000000) | ((near[1] & 0x7FFFFFFF) >> shifts)
    across[-1 if name == "float32" else -2] >>= shifts.astype(np.uint32)
    words = np.concatenate([far, near, across, across ^ 0x7FFFFFFF], axis=1)
    draws = _draws(words, name)
    assert _relative_error(draws, words, name) < DTYPES[name][2]
    radii = np.hypot(*draws.reshape(2, -1))
    assert np.max(radii) > 9
    assert np.min(radii) < 1e-4


@pytest.mark.parametrize("name", DTYPES)
def test_no_draw_is_zero_or_infinite(name):
    words = np.concatenate([_edges(name), _words(name, 100_000)], axis=1)
    draws = _draws(words, name)
    assert np.all(np.isfinite(draws))
    assert np.all(draws != 0)


@pytest.mark.parametrize("name, radius", [("float32", 9.271), ("float64", 11.354)])
def test_largest_draw(name, radius):
    # (2 * 62 * ln 2)^(1/2) and (2 * 93 * ln 2)^(1/2); the angle next to zero.
    draws = _draws(np.zeros([sum(DTYPES[name][:2]), 1], np.uint32), name)
    assert draws[0] == pytest.approx(radius, abs=1e-3)


@pytest.mark.parametrize("name", DTYPES)
def test_every_sign_comes_from_one_bit(name):
    words = np.repeat(_words(name, 1), 4, axis=1)
    words[1] = (words[1] & 0x7FFFFFFF) | (np.arange(4, dtype=np.uint32) % 2 << 31)
    angle = DTYPES[name][0]
    words[angle:, 2:] ^= 0xFFFFFFFF  # The angle's complement is its opposite.
    first, second = _draws(words, name).reshape(2, 4)
    np.testing.assert_array_equal(first[1::2], -first[::2])
    np.testing.assert_array_equal(second[1::2], second[::2])
    np.testing.assert_array_equal(first[2:], first[:2])
    np.testing.assert_array_equal(second[2:], -second[:2])


@pytest.mark.parametrize("leading_zeros", [0, 1, 8, 20, 31, 36, 44])
@pytest.mark.parametrize("name", DTYPES)
def test_tails_are_exponential_in_the_square(name, leading_zeros):
    # Given k or more zeros, half the squared radius is k ln 2 plus an exponential draw: tails of 3
    # to 8 standard deviations as they are, from few draws.
    words = _words_with_zeros(name, [leading_zeros] * 4000, 4000, seed=leading_zeros)
    first, second = _draws(words, name).astype(np.float64).reshape(2, -1)
    excess = (first**2 + second**2) / 2 - leading_zeros * np.log(2)
    assert stats.kstest(excess, "expon").pvalue > 1e-9
    assert stats.kstest(1.2 * excess, "expon").pvalue < 1e-9
    # The direction does not know the radius.
    turns = np.arctan2(second, first) / (2 * np.pi) % 1
    assert stats.kstest(turns, "uniform").pvalue > 1e-9
    assert stats.kstest(turns**1.25, "uniform").pvalue < 1e-9


def _widest_gap(multiplier, zeros):
    """Of v for all words whose product with `multiplier` begins with exactly so many zeros, in
    units of what it would be if they were spread evenly.
    """
    products = np.arange(2 ** (30 - zeros), 2 ** (31 - zeros), dtype=np.uint64)
    v = np.sort(products * pow(multiplier, -1, 2**31) % 2**31)
    gaps = np.diff(v, prepend=0, append=2**31)
    return np.max(gaps) / 2 ** (zeros + 1)


@pytest.mark.parametrize("zeros", range(10, 31))
def test_far_out_v_is_spread_evenly(zeros):
    # Beyond 31 zeros their number and v come from the same word.
    assert _widest_gap(gaussian._SPREAD, zeros) < 3
    if zeros < 27:
        # The word itself is small where it begins with zeros.
        assert _widest_gap(1, zeros) > 7


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_odd_size_leaves_out_the_last_draw(name, mode):
    words = _words(name, 5)
    even = _draws(words, name, mode)
    assert even.shape == (10,)
    np.testing.assert_array_equal(_draws(words, name, mode, 10), even)
    np.testing.assert_allclose(_draws(words, name, mode, 9), even[:9], rtol=DTYPES[name][2])


@pytest.mark.parametrize("name", DTYPES)
def test_no_words_no_draws(name):
    assert _draws(np.zeros([sum(DTYPES[name][:2]), 0], np.uint32), name).shape == (0,)


def test_words_per_pair():
    assert gaussian.words_per_pair(tf.float32) == 3
    assert gaussian.words_per_pair("float64") == 5


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.int32])
def test_refuses_other_dtypes(dtype):
    with pytest.raises(TypeError, match=f"float32 or float64. Received: dtype={dtype.name}"):
        gaussian.words_per_pair(dtype)
