import itertools
import os

import numpy as np
import pytest
from scipy import stats

from tfdp.noise import HostGenerator, host, host_generator
from tfdp.noise.bits import SeededFill


def _is_likely(counts, probabilities):
    counts = np.asarray(counts)
    return stats.chisquare(counts, np.sum(counts) * np.asarray(probabilities)).pvalue > 1e-9


def _feed(*arrays):
    """Returns a generator whose bits are these, one array for each draw."""
    given = iter(arrays)

    def fill(out):
        out[:] = np.resize(np.asarray(next(given), out.dtype), out.shape)

    return HostGenerator(fill)


def test_generators_do_not_repeat_each_other():
    draws = np.stack([host_generator().integers(2**62, size=10) for _ in range(3)])
    generator = host_generator()
    draws = np.concatenate([draws, [generator.integers(2**62, size=10) for _ in range(3)]])
    assert len(np.unique(draws)) == draws.size


def test_secret_is_what_the_operating_system_keys():
    assert HostGenerator().is_secret and host_generator().is_secret
    assert not HostGenerator(SeededFill(3)).is_secret


def test_same_bits_give_the_same_draws():
    left, right = (HostGenerator(SeededFill(3)) for _ in range(2))
    for _ in range(3):
        np.testing.assert_array_equal(left.permutation(9), right.permutation(9))
        np.testing.assert_array_equal(left.choice(50, 7, False), right.choice(50, 7, False))
        assert left.binomial(100, 0.5) == right.binomial(100, 0.5)


def test_integers_are_uniform():
    integers = host_generator().integers(7, size=70_000)
    assert integers.dtype == np.int64
    assert integers.shape == (70_000,)
    counts = np.bincount(integers, minlength=7)
    assert _is_likely(counts, np.full(7, 1 / 7))
    assert not _is_likely(counts + np.array([0, 0, 0, 3000, 0, 0, 0]), np.full(7, 1 / 7))


def test_integers_are_not_remainders():
    # 2^64 = 2 * 3 * 2^61 + 2 * 2^61: remainders are below 2 * 2^61 three times in four, not two in
    # three.
    maximum = 3 * 2**61
    integers = host_generator().integers(maximum, size=20_000)
    low = np.count_nonzero(integers < 2 * 2**61)
    assert _is_likely([low, 20_000 - low], [2 / 3, 1 / 3])
    words = host_generator().integers(2**62, size=40_000).reshape(2, -1)
    remainders = (4 * words[0].astype(object) + words[1] % 4) % maximum
    low = np.count_nonzero(remainders < 2 * 2**61)
    assert not _is_likely([low, 20_000 - low], [2 / 3, 1 / 3])


@pytest.mark.parametrize("limits", [(1,), (5, 6), (2,), (-3, 4), (0, 2**63 - 1), (2**40, 2**41)])
def test_integers_stay_between_their_limits(limits):
    low, high = (0, *limits) if len(limits) == 1 else limits
    integers = host_generator().integers(*limits, size=300)
    assert np.all((integers >= low) & (integers < high))
    if high - low <= 7:
        assert set(integers.tolist()) == set(range(low, high))


def test_integers_of_no_size():
    assert host_generator().integers(3, size=0).shape == (0,)


@pytest.mark.parametrize("limits", [(0,), (-1,), (3, 3), (4, 3), (2**63,), (-1, 2**63 - 1)])
def test_refuses_limits_without_integers_between(limits):
    with pytest.raises(ValueError, match="high - low must be in"):
        host_generator().integers(*limits, size=1)


def test_random_is_uniform():
    draws = host_generator().random(10_000)
    assert np.all((draws >= 0) & (draws < 1))
    assert stats.kstest(draws, stats.uniform.cdf).pvalue > 1e-9
    assert stats.kstest(draws**1.2, stats.uniform.cdf).pvalue < 1e-9
    assert np.mean(draws != draws.astype(np.float32)) > 0.9


@pytest.mark.parametrize("n, p", [(20, 0.3), (1000, 0.004), (3, 0.9), (200, 2.0**-5)])
def test_binomial_has_its_distribution(n, p):
    generator = host_generator()
    draws = np.array([generator.binomial(n, p) for _ in range(4000)])

    def likely(probability):
        # Outcomes that are expected less than five times count together.
        expected = stats.binom.pmf(np.arange(n + 1), n, probability)
        common = 4000 * expected >= 5
        counts = np.bincount(draws, minlength=n + 1)
        grouped = [*counts[common], counts[~common].sum()]
        chances = [*expected[common], max(expected[~common].sum(), 1e-12)]
        return _is_likely(grouped, np.array(chances) / sum(chances))

    assert likely(p)
    assert not likely(min(1.3 * p, 0.99))


def _feed_bits(*firsts):
    """Returns a generator whose draws of at most 3 bits are first these, then 0."""

    def fill(out):
        words = out.view(np.uint64)
        words[:] = 0
        words[: len(firsts)] = np.array(firsts, np.uint64) << np.uint64(61)

    return HostGenerator(fill)


@pytest.mark.parametrize("eighths", range(9))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_binomial_of_all_bits_that_there_are(n, eighths):
    # Three draws of three bits decide three trials of a probability in eighths.
    p = eighths / 8
    counts = np.zeros(n + 1)
    for firsts in itertools.product(range(8), repeat=3):
        counts[_feed_bits(*firsts).binomial(n, p)] += 1
    np.testing.assert_allclose(counts / 512, stats.binom.pmf(np.arange(n + 1), n, p), atol=1e-12)


def test_binomial_compares_eighty_bits():
    # All bits are 0, and so the uniform number is.
    assert _feed_bits().binomial(1, 2.0**-80) == 1
    assert _feed_bits().binomial(1, 2.0**-81) == 0
    assert _feed_bits(*[0] * 79, 4).binomial(1, 2.0**-80) == 0
    assert _feed_bits(*[0] * 79, 4).binomial(1, 2.0**-79) == 1
    # 2^-2 + 2^-54, of 53 bits: 0, 1 and then 51 times 0 until the last 1.
    p = 2.0**-2 + 2.0**-54
    assert _feed_bits(0, 4, *[0] * 51, 0).binomial(1, p) == 1
    assert _feed_bits(0, 4, *[0] * 51, 4).binomial(1, p) == 0


@pytest.mark.parametrize("numpy", ["1", "2"])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 4096 * 8, 4096 * 8 + 1, (1 << 20) + 3, 3 << 20])
def test_binomial_counts_every_bit_that_it_draws_once(count, numpy, monkeypatch):
    drawn = []

    def fill(out):
        out[:] = np.random.default_rng(len(drawn)).integers(0, 2**64, out.shape, np.uint64)
        drawn.append(out.copy())

    if numpy == "1":
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    ones = host._count_of_ones(count, fill)
    words = [f"{word:064b}" for word in np.concatenate(drawn)]
    assert len(words) == -(-count // 64)
    assert ones == "".join(words)[:count].count("1")


@pytest.mark.parametrize("n, p, count", [(0, 0.5, 0), (9, 0.0, 0), (9, 1.0, 9), (9, 1e-300, 0)])
def test_binomial_without_chance(n, p, count):
    assert host_generator().binomial(n, p) == count


@pytest.mark.parametrize("n, p", [(-1, 0.5), (1, -0.1), (1, 1.1), (1, float("nan"))])
def test_refuses_what_is_no_binomial(n, p):
    with pytest.raises(ValueError, match="n must be at least 0 and p in"):
        host_generator().binomial(n, p)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_ordered_choices_are_equally_likely(size):
    # Of at most half of the five, and of more: the two ways of drawing.
    generator = host_generator()
    choices = [tuple(generator.choice(5, size, replace=False).tolist()) for _ in range(6000)]
    orders = list(itertools.permutations(range(5), size))
    counts = [choices.count(order) for order in orders]
    assert sum(counts) == 6000
    assert _is_likely(counts, np.full(len(orders), 1 / len(orders)))
    biased = [
        count * (2 if order[0] == 0 else 1) for order, count in zip(orders, counts, strict=True)
    ]
    assert not _is_likely(biased, np.full(len(orders), 1 / len(orders)))


def test_choice_of_many_is_distinct_and_in_range():
    for size in (0, 1, 4000, 5001, 9_999, 10_000):
        chosen = host_generator().choice(10_000, size, replace=False, shuffle=False)
        assert chosen.dtype == np.int64
        assert len(np.unique(chosen)) == size
        assert np.all((chosen >= 0) & (chosen < 10_000))


def test_choice_takes_the_first_different_draws():
    # Of 0 .. 15, in four bits, 12 is too large: 3, 3, 1, 3. Two are missing: 1, 5. One: 7.
    generator = _feed([3, 3, 12, 1, 3, 8], [1, 5], [7])
    assert generator.choice(10, 4, replace=False).tolist() == [3, 1, 5, 7]


@pytest.mark.parametrize(
    "arguments", [(3, 4, False), (3, -1, False), (3, 2, True), (3, 2)], ids=str
)
def test_refuses_a_choice_that_is_not_distinct(arguments):
    with pytest.raises(ValueError, match="Distinct integers are drawn"):
        host_generator().choice(*arguments)


def test_permutations_are_equally_likely():
    generator = host_generator()
    drawn = [tuple(generator.permutation(4).tolist()) for _ in range(5000)]
    counts = [drawn.count(order) for order in itertools.permutations(range(4))]
    assert sum(counts) == 5000
    assert _is_likely(counts, np.full(24, 1 / 24))
    counts[7] += 250
    assert not _is_likely(counts, np.full(24, 1 / 24))


def test_permutation_with_equal_keys_is_drawn_again():
    generator = _feed([5, 5, 1], [5, 3, 4])
    assert generator.permutation(3).tolist() == [1, 2, 0]


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_permutation_has_every_integer_once(n):
    assert sorted(host_generator().permutation(n).tolist()) == list(range(n))


def test_every_draw_has_a_key_of_its_own(monkeypatch):
    # So that a process that is forked, or a snapshot that is restored, shares nothing.
    keys = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: keys.append(real(size)) or keys[-1])
    generator = host_generator()
    for _ in range(5):
        generator.permutation(5)
    assert len(set(keys)) == 5


def test_a_generator_that_is_given_is_taken_and_anything_else_refused():
    for generator in (HostGenerator(SeededFill(0)), np.random.default_rng(0)):
        assert host_generator(generator) is generator
    for other in (0, 5, "secret", np.random, False):
        with pytest.raises(TypeError, match="generator must be"):
            host_generator(other)
