"""A lower bound from one run, for canaries that the mechanism treats independently.

Before the run, a fair coin decides for each of m canaries whether it is in the data. The attacker
guesses r coins, and v guesses are right. The mechanism is f-private for every canary, and what the
attacker sees of one canary is independent of the coins of the others and of what is seen of these.

*The best attacker.* There is a symmetric pair of distributions whose trade-off function is f. What
is seen of a canary can then be made, with fresh randomness, from one observation of that pair
(Blackwell 1953; Dong, Roth and Su 2019, arXiv:1905.02383, theorem 2.10). So no attacker does better
than one who sees all m of these observations. Given them, guesses are right independently of each
other, each with its own probability, so it is best to guess the r coins with the largest ones: the
top order statistics.

*Their distribution.* Let F(x) = 1 - f(x), the largest true positive rate at false positive rate x.
The most telling share u of all observations consists of a test with false positive rate x for
presence and of its mirror image for absence, where x + F(x) = u. Guesses there are right with
probability a(u) = F(x) / u = 1 - x / u. The share beyond the (r + 1)-th most telling one of m
observations is Beta(r + 1, m - r), and given it the r are independent, so that

    P[v or more are right] <= E[ P[Binomial(r, a(U)) >= v] ],    U ~ Beta(r + 1, m - r).
"""

import functools
from collections.abc import Callable

import numpy as np

from tfdp.audit.guesses import check_counts
from tfdp.audit.scores import check_confidence

# What the bounds of this module need to be true; to be shown beside their numbers.
ASSUMPTIONS = (
    "every canary was in or out by a fair coin of its own",
    "the number of guesses was decided upon before the coins were looked at",
    "scores of different canaries are independent, given the coins (as along orthogonal "
    "gradients under Gaussian noise)",
)
_LARGEST_MU = 100.0
# Where the distribution function of U is divided: what is refuted with high confidence is decided
# in its lower tail.
_PANELS = (0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.99, 1.0)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)

# From false positive rates, an array, to the largest true positive rates.
Rates = Callable[[np.ndarray], np.ndarray]


def mu_lower_bound_of_independent_guesses(
    correct: int, guesses: int, canaries: int, confidence: float = 0.95
) -> float:
    """Returns a mu that the mechanism exceeds, with the given confidence.

    Guarantees:
        A mechanism that is mu-Gaussian-private for every canary gets a larger number with
        probability 1 - confidence at most, under `ASSUMPTIONS`. If canaries depend on each other,
        it may get one more often: `mu_lower_bound_of_guesses` is for these.

    Edge cases:
        0.0 where nothing is shown.

    Args:
        correct: v, how many guesses are right (`correct_guesses`).
        guesses: r, which must be decided upon before the coins are looked at. Of a Gaussian with mu
            between 0.5 and 2, 70 % of the canaries show most; of a larger mu, all.
        canaries: m, those that were not guessed included.
        confidence: In (0, 1).

    Raises:
        ValueError: a number is out of range, or not correct <= guesses <= canaries.
        TypeError: an argument is not a number, or a count is not an integer.

    Example:
        >>> mu = mu_lower_bound_of_independent_guesses(534, 700, 1000)
        >>> round(mu, 3)
        0.929
        >>> from tfdp.accounting.analytic_gaussian import gaussian_epsilon
        >>> round(gaussian_epsilon(mu, 1e-5), 2)
        4.02

    References:
        Xiang, Wang, Xiao, Tian and Wang 2025, Tight privacy audit in one run, arXiv:2509.08704, for
        the setting; the bound is derived above.
    """
    correct, guesses, canaries = check_counts(correct, guesses, canaries)
    failure = 1 - check_confidence(confidence)

    def refuted(mu: float) -> bool:
        return _p_value(correct, guesses, canaries, gaussian_rates(mu)) < failure

    # More privacy loss makes more guesses right, so the p-value grows with mu.
    low, high = 0.0, _LARGEST_MU
    if not refuted(low):
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def p_value_of_independent_guesses(
    correct: int,
    guesses: int,
    canaries: int,
    true_positive_rate: Callable[[float], float],
) -> float:
    """Returns how probable so many correct guesses are at most, if what is claimed is true.

    A small number refutes the claim: one below 0.05 does so with a confidence of 95 %.

    Guarantees:
        Under `ASSUMPTIONS`, a mechanism no test of which beats `true_positive_rate` gets a number
        below p with probability p at most.

    Args:
        correct: v, how many guesses are right.
        guesses: r, decided upon before the coins are looked at.
        canaries: m, those that were not guessed included.
        true_positive_rate: From a false positive rate to the largest true positive rate of any test
            of presence, and likewise of absence, such as `tfdp.report.tradeoff.Profile` has for a
            ledger.

    Raises:
        ValueError: a number is out of range, or not correct <= guesses <= canaries.
        TypeError: a count is not an integer.

    Example:
        >>> from math import exp
        >>> private = lambda x: min(1.0, exp(0.1) * x, 1 - exp(-0.1) * (1 - x))
        >>> p_value_of_independent_guesses(534, 700, 1000, private) < 1e-9
        True
    """
    counts = check_counts(correct, guesses, canaries)
    return _p_value(*counts, np.vectorize(true_positive_rate, otypes=[np.float64]))


def sensitivity_factor_lower_bound(
    correct: int,
    guesses: int,
    canaries: int,
    rates_of: Callable[[float], Callable[[float], float]],
    confidence: float = 0.95,
) -> float:
    """Returns by which factor the claimed sensitivity is exceeded or missed, at least.

    A lower bound in the family of mechanisms that do what is claimed with records that weigh
    `factor` times as much, or with noise that is so much smaller. Its epsilon, by a lower bound
    (`PRVAccountant.get_epsilon_interval`), is what the run proves of a training whose trade-off is
    no Gaussian's, such as one with sampled steps: "the noise is at most that of ...". A factor of 1
    is the claim itself, and more than 1 refutes it.

    Guarantees:
        If the mechanism is the member of the family for some factor, a larger number is returned
        with probability 1 - confidence at most, under `ASSUMPTIONS`.

    Edge cases:
        0.0 where even a factor of 1/64 is not refuted, and 64 where no factor below it is left.

    Args:
        correct: v, how many guesses are right.
        guesses: r, decided upon before the coins are looked at.
        canaries: m, those that were not guessed included.
        rates_of: From a factor to a claim as in `p_value_of_independent_guesses`; a larger factor
            allows larger rates.
        confidence: In (0, 1).

    Raises:
        ValueError: a number is out of range, or not correct <= guesses <= canaries.
        TypeError: an argument is not a number, or a count is not an integer.

    References:
        Nasr et al. 2023, arXiv:2302.07956, section 4, for bounds within such a family.
    """
    counts = check_counts(correct, guesses, canaries)
    failure = 1 - check_confidence(confidence)

    def refuted(exponent: float) -> bool:
        return p_value_of_independent_guesses(*counts, rates_of(2.0**exponent)) < failure

    if p_value_of_independent_guesses(*counts, lambda rate: rate) >= failure:
        return 0.0  # Not even that nothing is lost is refuted.
    # From the claim itself in steps: noise that is far from it may take an accountant minutes.
    low = 0.0
    if refuted(low):
        while low < 6 and refuted(low + 1):
            low += 1
    else:
        low -= 1
        while low >= -6 and not refuted(low):
            low -= 1
    if low < -6:
        return 0.0
    if low == 6:
        return 2.0**low
    high = low + 1
    while high - low > 5e-3:  # Half a percent of the noise.
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return float(2.0**low)


def gaussian_rates(mu: float) -> Rates:
    """Returns the largest true positive rates of N(mu, 1) against N(0, 1)."""
    from scipy import special

    return lambda x: special.ndtr(special.ndtri(x) + mu)


def _p_value(correct: int, guesses: int, canaries: int, rates: Rates) -> float:
    from scipy import special

    if correct == 0:
        return 1.0
    weights, shares = _most_telling_shares(guesses, canaries)
    # P[Binomial(r, a) >= v] is the distribution function of Beta(v, r - v + 1) at a.
    tails = special.betainc(correct, guesses - correct + 1, _accuracies(shares, rates))
    return float(min(1.0, weights @ tails))


@functools.lru_cache(maxsize=16)
def _most_telling_shares(guesses: int, canaries: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights and values of U, for expectations of smooth functions."""
    from scipy import special

    if guesses == canaries:
        return np.ones(1), np.ones(1)
    edges = np.array(_PANELS)
    widths = np.diff(edges)[:, None]
    points = (edges[:-1, None] + widths * (_NODES + 1) / 2).ravel()
    weights = (widths * _WEIGHTS / 2).ravel()
    return weights, special.betaincinv(guesses + 1, canaries - guesses, points)


def _accuracies(shares: np.ndarray, rates: Rates) -> np.ndarray:
    """Returns a(u), where rounding makes it larger rather than smaller."""
    low, high = np.zeros_like(shares), shares / 2
    for _ in range(60):
        middle = (low + high) / 2
        below = middle + rates(middle) <= shares
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 1 - low / np.maximum(shares, np.finfo(np.float64).tiny)
