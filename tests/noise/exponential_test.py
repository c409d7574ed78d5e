"""Exponential probabilities are exact: bounds against mpmath, close calls, distributions."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from tfdp.noise import exponential
from tfdp.noise.bits import SeededFill, system_fill


@pytest.mark.parametrize("exponent", [Fraction(1, 10**30), Fraction(1, 3), 1, 17, 999, 10**6])
@pytest.mark.parametrize("digits", [20, 40, 200])
def test_bounds_hold_and_are_close(exponent, digits):
    low, high = exponential.exp_bounds(Fraction(exponent), digits)
    with mpmath.workdps(600):
        exact = mpmath.exp(
            -mpmath.mpf(Fraction(exponent).numerator) / Fraction(exponent).denominator
        )
        assert mpmath.mpf(low.numerator) / low.denominator <= exact
        assert mpmath.mpf(high.numerator) / high.denominator >= exact
    assert high - low <= 2 * Fraction(10) ** (5 - digits) * high or exponent > 1000
    assert exponential.exp_bounds(Fraction(0), digits) == (1, 1)


class Words:
    """Writes words that were chosen."""

    def __init__(self, *words):
        self.words = list(words)

    def __call__(self, out):
        out[:] = [self.words.pop(0) for _ in out]


@pytest.mark.parametrize("exponent", [Fraction(1), Fraction(1, 7), Fraction(25, 2)])
def test_uniform_beside_the_probability_is_decided_exactly(exponent):
    # The first 64 bits of exp(-exponent) decide nothing; the next 64 do, one way or the other.
    with mpmath.workdps(100):
        first = int(
            mpmath.floor(
                mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator) * 2**128
            )
        )
    word, rest = first >> 64, first & (2**64 - 1)
    assert 2 < rest < 2**64 - 2
    assert exponential.bernoulli_exp(Words(word, rest - 1), exponent)
    assert not exponential.bernoulli_exp(Words(word, rest + 1), exponent)
    assert exponential.bernoulli_exp(Words(word - 1), exponent)
    assert not exponential.bernoulli_exp(Words(word + 1), exponent)


@pytest.mark.parametrize("exponent", [0, Fraction(1, 10), 1, 3])
def test_frequency_is_the_probability(exponent):
    count = sum(exponential.bernoulli_exp(system_fill, Fraction(exponent)) for _ in range(4000))
    low, high = stats.binom.interval(1 - 1e-9, 4000, math.exp(-exponent))
    assert low <= count <= high


@pytest.mark.parametrize("number", [1, 2, 3, 7, 2**64 - 1, 2**64, 2**64 + 1, 3**100])
def test_integers_are_below_their_number_and_uniform(number):
    draws = [exponential.uniform_below(system_fill, number) for _ in range(2000)]
    assert 0 <= min(draws) and max(draws) < number
    if number <= 7:
        low, high = stats.binom.interval(1 - 1e-10, 2000, 1 / number)
        assert all(low <= draws.count(value) <= high for value in range(number))
    else:
        assert stats.kstest([float(Fraction(d, number)) for d in draws], "uniform").pvalue > 1e-9


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(7, 5), Fraction(40)])
def test_discrete_laplace_has_its_probabilities(scale):
    draws = np.array([exponential.discrete_laplace(system_fill, scale) for _ in range(4000)])
    edge = max(1, round(2 * scale))
    ratio = math.exp(-1 / scale)
    share = (1 - ratio) / (1 + ratio)
    for value in range(-edge, edge + 1):
        low, high = stats.binom.interval(1 - 1e-10, 4000, share * ratio ** abs(value))
        assert low <= np.count_nonzero(draws == value) <= high
    low, high = stats.binom.interval(1 - 1e-9, 4000, share * ratio ** (edge + 1) / (1 - ratio))
    assert low <= np.count_nonzero(draws > edge) <= high


def test_a_seed_repeats():
    draws = [
        [exponential.discrete_laplace(fill, Fraction(100)) for _ in range(5)]
        for fill in (SeededFill(1), SeededFill(1), SeededFill(2))
    ]
    assert draws[0] == draws[1] != draws[2]
