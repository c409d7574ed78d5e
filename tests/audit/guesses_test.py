"""Guesses come from scores alone, and equal scores know nothing of the order of the canaries."""

import numpy as np
import pytest

from tfdp.audit import correct_guesses
from tfdp.audit.guesses import check_counts


def test_guesses_are_at_both_ends_of_the_scores():
    scores = np.array([5.0, -5.0, 0.0, 4.0, -4.0, 0.1])
    inserted = np.array([True, False, True, False, True, False])
    # 5 in (right), -5 out (right), 4 in (wrong), -4 out (wrong); of an odd number one more is in.
    assert [correct_guesses(scores, inserted, r) for r in (1, 2, 3, 4)] == [1, 2, 2, 2]
    assert correct_guesses(-scores, ~inserted, 4) == 2


def test_equal_scores_are_guessed_by_lot():
    # All canaries that are in come last: a sort that keeps the order would be right every time.
    inserted = np.arange(10_000) >= 5000
    for scores in (np.zeros(10_000), np.repeat(np.inf, 10_000)):
        # Binomial(4000, 1/2) or narrower: 6 standard deviations are 190.
        assert abs(correct_guesses(scores, inserted, 4000) - 2000) < 190


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([1.0], [1], 1), TypeError, "boolean"),
        (([1.0, 2.0], [True], 1), ValueError, "same length"),
        (([[1.0]], [[True]], 1), ValueError, "vectors"),
        (([np.nan], [True], 1), ValueError, "NaN"),
        (([1.0], [True], 2), ValueError, "guesses=2, canaries=1"),
        (([1.0], [True], 0), ValueError, "guesses"),
    ],
)
def test_scores_are_validated(arguments, error, text):
    with pytest.raises(error, match=text):
        correct_guesses(*arguments)


@pytest.mark.parametrize("counts", [(0, 1, 1), (1, 1, 1), (2, 5, 5), (3, 4, 9)])
def test_counts_of_a_run_stay_what_they_are(counts):
    assert check_counts(*counts) == counts


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        ((5, 4, 9), ValueError),
        ((1, 5, 4), ValueError),
        ((0, 0, 9), ValueError),
        ((-1, 4, 9), ValueError),
        ((1.5, 4, 9), TypeError),
    ],
)
def test_counts_that_no_run_has_are_refused(counts, error):
    with pytest.raises(error):
        check_counts(*counts)
