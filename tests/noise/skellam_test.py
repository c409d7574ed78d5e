"""Draws from the Skellam distribution, against its probabilities to forty digits."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from tfdp.noise import skellam
from tfdp.noise.bits import SeededFill, system_fill
from tfdp.noise.skellam import Skellam, cumulative_bounds

ALARM = 1e-9
VARIANCES = [Fraction(1, 1000), Fraction(1, 3), Fraction(2), Fraction(37), Fraction(900)]


def probabilities(variance, last):
    with mpmath.workdps(60):
        m = mpmath.mpf(variance.numerator) / variance.denominator
        return [mpmath.exp(-m) * mpmath.besseli(k, m) for k in range(last + 1)]


@pytest.mark.parametrize("variance", VARIANCES, ids=float)
@pytest.mark.parametrize("precision", [64, 160])
def test_bounds_hold_and_are_near(variance, precision):
    low, high = cumulative_bounds(variance, precision)
    assert len(low) == len(high)
    last = min(len(low), 200)
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for k, p in enumerate(probabilities(variance, last - 1)):
            total += p if k == 0 else 2 * p
            exact = total * mpmath.mpf(2) ** precision
            assert low[k] <= exact * (1 + mpmath.mpf(10) ** -55)
            assert high[k] >= exact * (1 - mpmath.mpf(10) ** -55) or high[k] == 2**precision
    assert max(h - w for w, h in zip(low, high, strict=True)) <= 2 + 2 ** (precision // 64 + 4)
    # Beyond the last there is about one part in 2^precision.
    assert 2**precision - low[-1] <= 64


def chisquare(draws, variance):
    last = int(6 * math.sqrt(variance)) + 4
    inside = np.array([float(p) for p in probabilities(variance, last)])
    expected = np.concatenate([inside[:0:-1], inside])
    counts = np.bincount(np.clip(draws, -last - 1, last + 1) + last + 1, minlength=2 * last + 3)
    expected = np.concatenate([[(1 - expected.sum()) / 2], expected, [(1 - expected.sum()) / 2]])
    kept = expected * len(draws) > 5
    return stats.chisquare(
        counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()
    ).pvalue


@pytest.mark.parametrize("variance", VARIANCES[1:], ids=float)
def test_draws_have_these_probabilities_and_no_others(variance):
    draws = Skellam(variance).draw(system_fill, 100_000)
    assert draws.dtype == np.int64
    assert chisquare(draws, variance) > ALARM
    assert chisquare(draws, variance * Fraction(10, 9)) < ALARM
    assert chisquare(draws, variance * Fraction(9, 10)) < ALARM


def test_is_told_from_a_rounded_gaussian_of_the_same_variance():
    variance = Fraction(2)
    normal = np.rint(np.random.default_rng(0).normal(size=200_000) * math.sqrt(2)).astype(np.int64)
    assert chisquare(normal, variance) < ALARM
    poisson = np.random.default_rng(0).poisson(1.0, size=[2, 200_000])
    assert chisquare(poisson[0] - poisson[1], variance) > ALARM


def test_draws_are_independent_and_new():
    distribution = Skellam(Fraction(900))
    first, second = (distribution.draw(system_fill, 40_000) for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 6.2 / 200
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 6.2 / 200
    seeded = [distribution.draw(SeededFill(0), 10).tolist() for _ in range(2)]
    assert seeded[0] == seeded[1]


def _words(*values):
    """Returns a fill that writes these words, and then ends the test."""
    left = list(values)

    def fill(out):
        out[:] = left.pop(0)

    return fill


@pytest.mark.parametrize("k", [0, 1, 5])
def test_a_number_as_near_as_the_bounds_gets_more_bits(k):
    variance = Fraction(2)
    low, high = cumulative_bounds(variance, 300)
    exact = low[k]
    first, second = exact >> (300 - 64), (exact >> (300 - 128)) & (2**64 - 1)
    distribution = Skellam(variance)
    # 64 bits are those of the bound; the next ones are below, or above it.
    assert distribution._decide(_words(second - 2), first) == k
    assert distribution._decide(_words(second + 2), first) == k + 1
    third = (exact >> (300 - 192)) & (2**64 - 1)
    assert distribution._decide(_words(second, third - 2), first) == k
    assert distribution._decide(_words(second, third + 2), first) == k + 1
    found = distribution.draw(_words(first, 0, second - 2), 1)
    assert found.tolist() == [k]


def test_the_far_tail_is_drawn_from_a_longer_table():
    distribution = Skellam(Fraction(2))
    table = len(cumulative_bounds(Fraction(2), 96)[0])
    far = distribution._decide(_words(2**64 - 1, 2**63), 2**64 - 1)
    assert far > table - 8
    assert distribution.draw(_words(2**64 - 1, 1, 2**63), 1)[0] < -10


def test_table_is_made_once():
    assert skellam.skellam(Fraction(5)) is skellam.skellam(Fraction(5))


@pytest.mark.parametrize("bad", [1.0, True, "1", None])
def test_refuses_variances_that_are_not_exact(bad):
    with pytest.raises(TypeError, match="Fraction or an integer"):
        Skellam(bad)


@pytest.mark.parametrize("bad", [0, Fraction(1, 2**41), 2**28 + 1])
def test_refuses_variances_out_of_range(bad):
    with pytest.raises(ValueError, match="variance must be"):
        Skellam(bad)
