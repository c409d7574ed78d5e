"""Discrete Laplace noise drawn in bulk: its distribution, and draws that are hard to decide."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tfdp.noise import discrete_laplace
from tfdp.noise.bits import SeededFill, system_fill
from tfdp.noise.discrete_laplace import discrete_laplaces


def probabilities(scale, largest):
    """Of -largest or less, ..., largest or more."""
    ratio = np.exp(-1 / scale)
    inner = (1 - ratio) / (1 + ratio) * ratio ** np.abs(np.arange(1 - largest, largest))
    tail = ratio**largest / (1 + ratio)
    return np.array([tail, *inner, tail])


def fit(draws, scale, largest):
    counts = np.bincount(np.clip(draws, -largest, largest) + largest, minlength=2 * largest + 1)
    return stats.chisquare(counts, len(draws) * probabilities(scale, largest)).pvalue


@pytest.mark.parametrize(
    "scale, largest", [(Fraction(1, 3), 2), (1, 4), (Fraction(5, 2), 9), (Fraction(73, 10), 20)]
)
def test_frequencies_are_the_probabilities(scale, largest):
    draws = discrete_laplaces(system_fill, Fraction(scale), 40_000)
    assert fit(draws, float(scale), largest) > 1e-9
    # A scale that is a tenth off would be seen, and a zero that comes twice as often.
    assert fit(draws, 1.1 * float(scale), largest) < 1e-15
    twice = np.concatenate([draws, draws[draws == 0]])
    assert fit(twice, float(scale), largest) < 1e-15


@pytest.mark.parametrize("scale", [Fraction(10**6, 7), Fraction(2**40), Fraction(2**52)])
def test_large_scales_are_nearly_those_of_continuous_noise(scale):
    draws = discrete_laplaces(system_fill, scale, 40_000) / float(scale)
    assert stats.kstest(draws, stats.laplace.cdf).pvalue > 1e-9
    assert stats.kstest(draws * 1.2, stats.laplace.cdf).pvalue < 1e-15
    # Digits are independent of each other and of the sign: so are draws of their neighbours.
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 6.2 / 200


class Words:
    """Writes numbers that were chosen, whatever their type."""

    def __init__(self, *words):
        self.words = list(words)

    def __call__(self, out):
        out[:] = [self.words.pop(0) for _ in out]


def test_words_beside_a_probability_are_decided_exactly():
    third = (Fraction(1, 3), Fraction(1, 3))
    first = 2**32 // 3
    # 2^64 / 3 has first 32 bits 0x55555555, and then the same again.
    assert first == 0x55555555
    for rest, expected in ((first - 1, True), (first + 1, False)):
        fill = Words(first - 1, first, first + 1, rest)
        found = discrete_laplace._bernoullis(fill, lambda digits: third, 3)
        assert found.tolist() == [True, expected, False]
        assert fill.words == []


def test_digits_are_bits_of_the_magnitude():
    # Scale 1/4: no digit is drawn, and what is above them is the geometric magnitude: a word of
    # zeros is below exp(-4), one of ones is not. Then the signs.
    ones = 2**32 - 1
    fill = Words(0, ones, 0, 0, ones, ones, 0, 1, 1, ones, 0)
    # Magnitudes 2 (0, 0, ones), 0 (ones), 1 (0, ones); signs +, -, -: the zero is drawn again.
    assert discrete_laplaces(fill, Fraction(1, 4), 3).tolist() == [2, 0, -1]
    assert fill.words == []


def test_every_draw_takes_bits_of_its_own():
    first, second = (discrete_laplaces(SeededFill(seed), Fraction(1000), 500) for seed in (1, 2))
    again = discrete_laplaces(SeededFill(1), Fraction(1000), 500)
    assert np.array_equal(first, again) and np.mean(first == second) < 0.05
    assert discrete_laplaces(system_fill, Fraction(1), 0).shape == (0,)


@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(2**52 + 1)])
def test_refuses_bad_scales(scale):
    with pytest.raises(ValueError, match="scale must be"):
        discrete_laplaces(system_fill, scale, 1)
