"""A lower bound on mu from one run, whatever the canaries have to do with each other.

Before the run, a fair coin decides for each of m canaries whether it is in the data. The attacker
guesses r coins. Let p_i be the probability that exactly i guesses are right. Turning over the coin
of a canary that was guessed right makes i - 1 of them right and its own wrong. It changes the
probability of the guesses by f at most. As F = 1 - f is concave, means over canaries and coins obey

    sum_{i > j} (i / m) p_i  <=  F( sum_{i >= j} ((r - i) / m) p_i )    for every j.

So a tail P[v or more are right] = p demands so much probability of fewer right guesses, of which
these demand more, that p is refuted where the sum exceeds one. The demand is smallest where all of
the tail is at v and nothing has more than it needs. To see it, call the two sums R and H. A surplus
of H at j adds j / (r - j) times as much to R, and the next step takes back less,
(j - 1) / (r - j + 1).
"""

import math

from tfdp.audit.guesses import check_counts
from tfdp.audit.scores import check_confidence

_LARGEST_MU = 100.0


def mu_lower_bound_of_guesses(
    correct: int, guesses: int, canaries: int, confidence: float = 0.95
) -> float:
    """Returns a mu that the mechanism exceeds, with the given confidence.

    Guarantees:
        A mechanism that is mu-Gaussian-private for every canary gets a larger number with
        probability 1 - confidence at most. The canaries may influence each other, and the outputs
        may depend on each other in any way. A mechanism whose trade-off is not a Gaussian's has no
        mu, and nothing follows about its epsilon.

    Edge cases:
        0.0 where nothing is shown.

    Args:
        correct: How many guesses are right (`correct_guesses`).
        guesses: How many were made; decided upon before the coins were looked at. Fewer than half
            of the canaries show most.
        canaries: How many there are, those that were not guessed included.
        confidence: In (0, 1).

    Raises:
        ValueError: a number is out of range, or not correct <= guesses <= canaries.
        TypeError: an argument is not a number, or a count is not an integer.

    Example:
        >>> round(mu_lower_bound_of_guesses(860, 1000, 10_000), 3)
        0.566

    References:
        Mahloujifar, Melis and Chaudhuri 2024, Auditing f-differential privacy in one run,
        arXiv:2410.22235, theorem 9 and algorithm 3.
    """
    correct, guesses, canaries = check_counts(correct, guesses, canaries)
    failure = 1 - check_confidence(confidence)
    low, high = 0.0, _LARGEST_MU
    if not _refuted(correct, guesses, canaries, low, failure):
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        held = _refuted(correct, guesses, canaries, middle, failure)
        low, high = (middle, high) if held else (low, middle)
    return low


def _refuted(correct: int, guesses: int, canaries: int, mu: float, tail: float) -> bool:
    """Returns whether so many are right with a probability below `tail`, given mu."""
    from scipy import special

    right = tail * correct / canaries
    wrong = tail * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        # The inverse of F(x) = Phi(Phi^-1(x) + mu).
        demanded = float(special.ndtr(special.ndtri(right) - mu))
        if demanded <= wrong:
            return False
        right += i / (guesses - i) * (demanded - wrong)
        wrong = demanded
        if right + wrong > guesses / canaries * (1 + 1e-12):
            return True
    return math.fsum((right, wrong)) > guesses / canaries * (1 + 1e-12)
