"""The bound from independent canaries: its distribution by other ways, sound and powerful."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from tfdp.accounting import PRVAccountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.audit import (
    correct_guesses,
    mu_lower_bound_of_guesses,
    mu_lower_bound_of_independent_guesses,
    p_value_of_independent_guesses,
    sensitivity_factor_lower_bound,
)
from tfdp.audit.order_statistics import gaussian_rates
from tfdp.events import GaussianSumEvent
from tfdp.report.tradeoff import make_profile

FAILURE = 0.05
RUNS = 1000
# More failures than this have a probability below 1e-9 where 5 % are right.
MOST_FAILURES = int(stats.binom.isf(1e-9, RUNS, FAILURE))


def gaussian(mu):
    rates = gaussian_rates(mu)
    return lambda x: float(rates(np.float64(x)))


def pure(epsilon):
    return lambda x: min(1.0, math.exp(epsilon) * x, 1 - math.exp(-epsilon) * (1 - x))


def runs(rng, canaries, mu, count=RUNS):
    """Returns scores [count, canaries] and coins of a Gaussian that sees every canary alone."""
    coins = rng.integers(0, 2, (count, canaries)) == 1
    return np.where(coins, mu / 2, -mu / 2) + rng.normal(size=coins.shape), coins


def test_two_canaries_and_one_guess_by_integration():
    # The guess is about the larger of two |X|, and right with probability expit(mu |X|).
    for mu in (0.1, 1.0, 3.0):

        def density(t, mu=mu):
            return stats.norm.pdf(t - mu / 2) + stats.norm.pdf(t + mu / 2)

        def share(t, mu=mu):
            return special.ndtr(t - mu / 2) - special.ndtr(-t - mu / 2)

        exact, _ = integrate.quad(
            lambda t, mu=mu, f=share, d=density: 2 * f(t) * d(t) * special.expit(mu * t),
            *(0, 20),
            epsabs=1e-12,
        )
        assert p_value_of_independent_guesses(1, 1, 2, gaussian(mu)) == pytest.approx(
            exact, rel=1e-9
        )


def test_guesses_of_all_canaries_are_binomial():
    for correct, mu in ((300, 0.5), (70, 2.0), (0, 1.0)):
        expected = stats.binom.sf(correct - 1, 500, special.ndtr(mu / 2))
        found = p_value_of_independent_guesses(correct, 500, 500, gaussian(mu))
        assert found == pytest.approx(expected, rel=1e-9)


def test_randomized_response_is_equally_sure_of_every_coin():
    expected = stats.binom.sf(39, 50, special.expit(0.7))
    found = p_value_of_independent_guesses(40, 50, 200, pure(0.7))
    assert found == pytest.approx(expected, rel=1e-9)


def best_of_all_attackers(canaries, guesses, correct, shares, accuracies):
    """Returns the largest probability of so many right guesses, by trying every attacker.

    A canary is seen with one of some reliabilities. For each combination of these, an attacker
    guesses any subset of the coins.
    """
    total = 0.0
    for kinds in itertools.product(range(len(shares)), repeat=canaries):
        best = 0.0
        for chosen in itertools.combinations(kinds, guesses):
            right = [
                math.prod(
                    accuracies[k] if won else 1 - accuracies[k]
                    for k, won in zip(chosen, wins, strict=True)
                )
                for wins in itertools.product((0, 1), repeat=guesses)
                if sum(wins) >= correct
            ]
            best = max(best, sum(right))
        total += math.prod(shares[k] for k in kinds) * best
    return total


def test_no_attacker_is_better_than_the_bound_allows():
    shares, accuracies = [0.2, 0.5, 0.3], [0.95, 0.8, 0.55]
    # The trade-off of that: lines of slope a / (1 - a), the most telling observations first.
    x = np.cumsum([0.0] + [s * (1 - a) for s, a in zip(shares, accuracies, strict=True)])
    y = np.cumsum([0.0] + [s * a for s, a in zip(shares, accuracies, strict=True)])
    x, y = (np.concatenate([p, 1 - q[-2::-1]]) for p, q in ((x, y), (y, x)))
    for canaries, guesses in ((1, 1), (2, 1), (3, 2), (4, 2), (4, 4)):
        for correct in range(1, guesses + 1):
            exact = best_of_all_attackers(canaries, guesses, correct, shares, accuracies)
            found = p_value_of_independent_guesses(
                correct, guesses, canaries, lambda t: float(np.interp(t, x, y))
            )
            # The integrand has kinks where the reliability changes.
            assert found == pytest.approx(exact, abs=2e-3), (canaries, guesses, correct)


@pytest.mark.parametrize("mu", [0.0, 0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize(("canaries", "guesses"), [(1000, 700), (1000, 30), (300, 300), (20, 1)])
def test_claim_is_exceeded_in_no_more_runs_than_stated(mu, canaries, guesses):
    scores, coins = runs(np.random.default_rng(1), canaries, mu)
    correct = [correct_guesses(s, c, guesses) for s, c in zip(scores, coins, strict=True)]
    wrong = {
        v: p_value_of_independent_guesses(v, guesses, canaries, gaussian(mu)) < FAILURE
        for v in set(correct)
    }
    assert sum(wrong[v] for v in correct) <= MOST_FAILURES
    # With a claim of two thirds the same audit finds at least every other run at fault, where so
    # few guesses can: the alarm above has power.
    if mu >= 0.5 and guesses > 30 and mu < 4:
        claimed = gaussian(2 * mu / 3)
        found = {
            v: p_value_of_independent_guesses(v, guesses, canaries, claimed) < FAILURE
            for v in set(correct)
        }
        if (mu, canaries) != (0.5, 300):
            assert sum(found[v] for v in correct) > RUNS / 2 > MOST_FAILURES


def test_a_thousand_canaries_prove_most_of_a_gaussian():
    scores, coins = runs(np.random.default_rng(2), 1000, mu=1.0, count=200)
    correct = [correct_guesses(s, c, 700) for s, c in zip(scores, coins, strict=True)]
    proven = {
        v: gaussian_epsilon(mu_lower_bound_of_independent_guesses(v, 700, 1000), 1e-5)
        for v in set(correct)
    }
    mean = np.mean([proven[v] for v in correct])
    # The standard deviation of one run is 0.41, of the mean 0.029; the truth is 4.377.
    assert mean == pytest.approx(3.76, abs=0.18)
    assert mean > 0.8 * gaussian_epsilon(1.0, 1e-5)


def test_bound_is_where_the_p_value_is_the_failure():
    for correct, guesses, canaries in ((540, 700, 1000), (9, 10, 1000), (1000, 1000, 1000)):
        for confidence in (0.5, 0.95, 1 - 1e-9):
            mu = mu_lower_bound_of_independent_guesses(correct, guesses, canaries, confidence)
            if mu > 0:
                found = p_value_of_independent_guesses(correct, guesses, canaries, gaussian(mu))
                assert found == pytest.approx(1 - confidence, rel=1e-4)


def test_p_value_grows_with_mu_and_falls_with_correct():
    values = [
        [p_value_of_independent_guesses(v, 40, 100, gaussian(mu)) for mu in (0, 0.3, 1, 3, 10, 80)]
        for v in range(0, 41, 5)
    ]
    slack = 1e-12
    assert np.all(np.diff(values, axis=1) >= -slack)
    assert np.all(np.diff(values, axis=0) <= slack)


def test_claim_of_a_ledger_is_refuted_by_what_it_does_not_allow():
    claimed = PRVAccountant().compose(GaussianSumEvent(1.0, noise_stddev=1.0))
    profile = make_profile(claimed.get_epsilon, claimed.get_delta)
    # Right guesses of 700: 76 % are usual for mu = 1, and 91 % for mu = 2.
    usual = p_value_of_independent_guesses(532, 700, 1000, profile.true_positive_rate)
    assert 0.2 < usual < 0.9
    exact = p_value_of_independent_guesses(532, 700, 1000, gaussian(1.0))
    assert usual == pytest.approx(exact, abs=0.02)
    refuted = p_value_of_independent_guesses(637, 700, 1000, profile.true_positive_rate)
    assert refuted < 1e-12


def test_canaries_that_depend_on_each_other_need_the_other_bound():
    # How much is told is drawn once for all coins: of each of them, as much as N(+-1/2, 1) tells.
    rng = np.random.default_rng(3)
    reliability = special.expit(np.abs(rng.normal(0.5, size=RUNS)))
    correct = rng.binomial(300, reliability)
    claim = {
        v: p_value_of_independent_guesses(v, 300, 300, gaussian(1.0)) < FAILURE
        for v in set(correct)
    }
    assert sum(claim[v] for v in correct) > 2 * MOST_FAILURES
    proven = {v: mu_lower_bound_of_guesses(v, 300, 300) for v in set(correct)}
    assert sum(proven[v] > 1 for v in correct) <= MOST_FAILURES


@pytest.mark.parametrize("claimed", [0.25, 1.0, 3.0])
def test_factor_is_what_the_claim_is_exceeded_by_and_others_are_hardly_asked_about(claimed):
    asked = []

    def rates_of(factor):
        asked.append(factor)
        return gaussian(factor * claimed)

    mu = mu_lower_bound_of_independent_guesses(534, 700, 1000)
    factor = sensitivity_factor_lower_bound(534, 700, 1000, rates_of)
    assert 0.995 * mu / claimed <= factor <= mu / claimed
    # An accountant may take minutes for noise that is far from the claim.
    assert min(factor, 1.0) / 2.01 <= min(asked) and max(asked) <= 2.01 * max(factor, 1.0)


def test_factor_has_two_ends():
    def everything(rate):
        return 1.0

    def nothing(rate):
        return rate

    def never(factor):
        raise AssertionError("Nothing is shown, whatever is claimed.")

    assert sensitivity_factor_lower_bound(350, 700, 1000, never) == 0.0
    assert sensitivity_factor_lower_bound(700, 700, 1000, lambda _: everything) == 0.0
    assert sensitivity_factor_lower_bound(700, 700, 1000, lambda _: nothing) == 64.0


def test_nothing_is_shown_by_guesses_that_are_hardly_right():
    assert mu_lower_bound_of_independent_guesses(0, 10, 10) == 0.0
    assert mu_lower_bound_of_independent_guesses(5, 10, 100) == 0.0
    assert p_value_of_independent_guesses(0, 10, 10, gaussian(0.0)) == 1.0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((11, 10, 20), ValueError, "correct=11, guesses=10"),
        ((5, 21, 20), ValueError, "guesses=21, canaries=20"),
        ((1.5, 10, 20), TypeError, "correct"),
        ((5, 10, 20, 1.0), ValueError, "confidence"),
    ],
)
def test_arguments_are_validated(arguments, error, text):
    for bound in (mu_lower_bound_of_independent_guesses, mu_lower_bound_of_guesses):
        with pytest.raises(error, match=text):
            bound(*arguments)
