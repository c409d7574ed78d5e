"""A lower bound from one run with many canaries, each of which was in or out by a fair coin."""

import math

import numpy as np

from tfdp.audit.guesses import check_counts
from tfdp.audit.scores import check_confidence
from tfdp.events.arguments import real_number

# Beyond it every guess could be right.
_LARGEST_EPSILON = 60.0


def epsilon_lower_bound_of_guesses(
    correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """Returns an epsilon that the mechanism exceeds at this delta, with the given confidence.

    Before the run a fair coin decides for each of m canaries whether it is in the data set.
    Afterwards the attacker guesses r of the coins, and v of the guesses are right. Of an
    (epsilon, delta)-private mechanism

        P[v or more are right] <= P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i,

    where B is binomial, of r trials with success e^epsilon / (1 + e^epsilon). The bound is the
    smallest epsilon for which that is not below 1 - confidence.

    Guarantees:
        A mechanism that is (epsilon, delta)-private for the data sets with and without any of the
        canaries gets a larger number with probability 1 - confidence at most. The canaries may
        influence each other, and the outputs may depend on each other in any way.

    Edge cases:
        0.0 where nothing is shown. Where 2 m delta is not far below 1 - confidence, nothing can be.

    Args:
        correct: v.
        guesses: r, which must be decided upon before the coins are looked at: guess where the
            scores are most extreme.
        canaries: m, those that were not guessed included.
        delta: In [0, 1).
        confidence: In (0, 1).

    Raises:
        ValueError: a number is out of range, or not correct <= guesses <= canaries.
        TypeError: an argument is not a number, or a count is not an integer.

    Example:
        >>> round(epsilon_lower_bound_of_guesses(75, 100, 1000, delta=1e-4), 3)
        0.673

    References:
        Steinke, Nasr and Jagielski 2023, Privacy auditing with one (1) training run,
        arXiv:2305.08846, appendix D.
    """
    correct, guesses, canaries = check_counts(correct, guesses, canaries)
    delta = real_number("delta", delta, minimum=0, inclusive=True, maximum=1)
    failure = 1 - check_confidence(confidence)

    def refuted(epsilon: float) -> bool:
        return _p_value(correct, guesses, canaries, epsilon, delta) < failure

    # The p-value grows with epsilon where it is small.
    low, high = 0.0, _LARGEST_EPSILON
    if not refuted(low):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Returns how probable so many correct guesses are at most, where (epsilon, delta) is true."""
    from scipy import stats

    if correct == 0:
        return 1.0
    success = 1 / (1 + math.exp(-epsilon))
    as_many = float(stats.binom.sf(correct - 1, guesses, success))
    fewer = np.arange(1, correct + 1)
    just_missed = stats.binom.sf(correct - 1 - fewer, guesses, success) - as_many
    return min(1.0, as_many + 2 * canaries * delta * float(np.max(just_missed / fewer)))
