"""A bound from one run: published numbers, its definition, and what shows nothing."""

import math

import numpy as np
import pytest
from scipy import special

from tfdp.audit import epsilon_lower_bound_of_guesses
from tfdp.audit.one_run import _p_value

CONFIDENCE = 1 - 1e-7


def test_published_bounds_of_one_run():
    # arXiv:2305.08846: the example of appendix D, and section 7, both at 95 %.
    assert epsilon_lower_bound_of_guesses(75, 100, 1000, 1e-4) == pytest.approx(0.673, abs=5e-4)
    found = epsilon_lower_bound_of_guesses(1439, 1510, 100_000, 1e-5)
    assert found == pytest.approx(2.675, abs=1e-3)


def test_p_value_is_its_definition():
    correct, guesses, canaries, epsilon, delta = 40, 60, 300, 0.4, 1e-4
    success = math.exp(epsilon) / (1 + math.exp(epsilon))
    pmf = [
        math.comb(guesses, k) * success**k * (1 - success) ** (guesses - k)
        for k in range(guesses + 1)
    ]
    worst = max(sum(pmf[correct - i : correct]) / i for i in range(1, correct + 1))
    expected = sum(pmf[correct:]) + 2 * canaries * delta * worst
    found = _p_value(correct, guesses, canaries, epsilon, delta)
    assert found == pytest.approx(expected, rel=1e-9)


def test_p_value_grows_with_epsilon_where_it_is_small():
    for correct, guesses, delta in (
        (75, 100, 1e-4),
        (950, 1000, 1e-6),
        (10, 10, 0.0),
        (60, 100, 0),
    ):
        values = [_p_value(correct, guesses, 1000, e, delta) for e in np.linspace(0, 20, 400)]
        small = [v for v in values if v < 0.3]
        assert small == sorted(small)
        assert all(v >= 0.3 for v in values[len(small) :])


def test_randomized_response_is_bounded_by_its_epsilon():
    # Coins that are told with epsilon: every guess is right with probability e^eps / (1 + e^eps).
    rng = np.random.default_rng(0)
    for epsilon in (0.5, 1.0, 3.0):
        correct = int(rng.binomial(10_000, special.expit(epsilon)))
        found = epsilon_lower_bound_of_guesses(correct, 10_000, 10_000, 0.0, CONFIDENCE)
        assert epsilon - 0.35 < found < epsilon
        # Guesses that are right more often than that are found out.
        more = int(rng.binomial(10_000, special.expit(epsilon + 0.7)))
        assert epsilon_lower_bound_of_guesses(more, 10_000, 10_000, 0.0, CONFIDENCE) > epsilon


def test_many_canaries_share_delta():
    bounds = [epsilon_lower_bound_of_guesses(95, 100, m, 1e-5) for m in (100, 10_000, 10**6)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 2 and bounds[-1] == 0.0


def test_no_correct_guess_shows_nothing():
    assert epsilon_lower_bound_of_guesses(0, 10, 10, 0.0) == 0.0
    assert epsilon_lower_bound_of_guesses(5, 10, 10, 0.0) == 0.0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((11, 10, 20, 0.0), ValueError, "correct=11, guesses=10"),
        ((5, 21, 20, 0.0), ValueError, "guesses=21, canaries=20"),
        ((-1, 10, 20, 0.0), ValueError, "correct"),
        ((1.5, 10, 20, 0.0), TypeError, "correct"),
        ((5, 0, 20, 0.0), ValueError, "guesses"),
        ((5, 10, 20, 2.0), ValueError, "delta"),
        ((5, 10, 20, 0.0, 1.5), ValueError, "confidence"),
    ],
)
def test_guesses_are_validated(arguments, error, text):
    with pytest.raises(error, match=text):
        epsilon_lower_bound_of_guesses(*arguments)
