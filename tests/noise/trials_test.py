"""Trials of given probabilities, and the few successes of very many."""

import numpy as np
import pytest
from scipy import stats

from tfdp.noise.bits import SeededFill, system_fill
from tfdp.noise.trials import _gaps, successes, trials

ALARM = 1e-9


def test_trials_have_their_probabilities():
    probabilities = np.repeat([0.0, 1e-3, 0.3, 1 - 1e-3, 1.0], 20_000)
    drawn = trials(system_fill, probabilities).reshape(5, -1).sum(axis=1)
    assert drawn[0] == 0 and drawn[4] == 20_000
    for count, p in zip(drawn[1:4], probabilities[[20_000, 40_000, 60_000]], strict=True):
        assert stats.binomtest(int(count), 20_000, p).pvalue > ALARM


def test_trials_compare_all_bits():
    def fill(value):
        return lambda out: out.fill(value)

    half = np.array([0.5])
    assert trials(fill((1 << 63) - 1), half) and not trials(fill(1 << 63), half)
    assert trials(fill((1 << 64) - 1), np.ones(1)) and not trials(fill(0), np.zeros(1))


@pytest.mark.parametrize(("number", "p"), [(6, 0.3), (1, 0.5), (7, 0.9), (8, 0.02)])
def test_every_set_of_places_has_the_probability_of_single_trials(number, p):
    # P(set) = p^k (1 - p)^(number - k), for all 2^number sets.
    draws, fill = 8_000, SeededFill(number)
    counts = np.zeros(2**number)
    for _ in range(draws):
        counts[(1 << successes(fill, number, p)).sum()] += 1
    sizes = np.array([bin(code).count("1") for code in range(2**number)])
    expected = draws * p**sizes * (1 - p) ** (number - sizes)
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    kept = expected > 0
    assert stats.chisquare(observed[kept], expected[kept]).pvalue > ALARM
    # Trials of 0.8 times the probability are found out.
    other = 0.8 * p
    wrong = draws * other**sizes * (1 - other) ** (number - sizes)
    if number * draws * p > 2000:
        wrong = np.append(wrong[common], wrong[~common].sum())[kept]
        assert stats.chisquare(observed[kept], wrong * observed.sum() / wrong.sum()).pvalue < ALARM


@pytest.mark.parametrize("p", [1e-4, 0.01, 0.4])
def test_gaps_are_geometric(p):
    number = 2**40
    gaps = _gaps(SeededFill(3), number, p, 20_000)
    edges = np.unique(stats.geom.ppf(np.linspace(0.05, 0.95, 19), p) - 1)
    observed = np.histogram(gaps, [-1, *edges + 0.5, number])[0]
    expected = 20_000 * np.diff(stats.geom.cdf([-1, *edges + 1, number], p))
    assert stats.chisquare(observed, expected).pvalue > ALARM


def test_number_of_successes_among_many_is_binomial():
    number, p, fill = 10**9, 3e-8, SeededFill(5)
    counts = [successes(fill, number, p).size for _ in range(3000)]
    assert abs(np.mean(counts) - 30) < 6.1 * np.sqrt(30 / 3000)
    assert stats.kstest(counts, stats.poisson(30).cdf).pvalue > ALARM or np.var(counts) < 40
    assert 30 * 0.8 < np.var(counts) < 30 * 1.25


def test_ends():
    assert successes(system_fill, 10, 0.0).size == 0
    assert successes(system_fill, 10, 1e-300).size == 0
    assert successes(system_fill, 0, 0.5).size == 0
    np.testing.assert_array_equal(successes(system_fill, 5, 1.0), np.arange(5))
    # More successes than are drawn at once.
    places = successes(SeededFill(1), 200_000, 0.5)
    assert np.all(np.diff(places) > 0) and places[0] >= 0 and places[-1] < 200_000
    assert abs(places.size - 100_000) < 6.1 * np.sqrt(50_000)
