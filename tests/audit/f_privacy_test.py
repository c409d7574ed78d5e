"""The bound for any canaries: its recursion against a linear program, and published numbers."""

import numpy as np
import pytest
from scipy import optimize, special

from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.audit import epsilon_lower_bound_of_guesses, mu_lower_bound_of_guesses
from tfdp.audit.f_privacy import _refuted

# (correct, guesses, canaries) -> epsilon at delta 1e-5 and significance 0.05, by the function
# _epsilon_one_run_fdp of JAX Privacy's auditing.py.
PUBLISHED = {
    (75, 100, 1000): 1.0059159,
    (860, 1000, 10_000): 2.2887284,
    (98, 100, 1000): 4.2278729,
    (534, 700, 1000): 1.8264409,
    (20, 20, 100): 3.2393925,
}


def largest_tail(correct, guesses, canaries, mu):
    """Returns the largest tail that the inequalities allow, over all p_0, ..., p_r.

    F is concave, so it is the minimum of its tangents. They are steep near zero.
    """
    z = np.linspace(-9, 9, 400)
    x, y = special.ndtr(z), special.ndtr(z + mu)
    slopes = np.exp(-z * mu - mu * mu / 2)
    i = np.arange(guesses + 1)
    rows, bounds = [], []
    for j in range(guesses):
        told = np.where(i > j, i / canaries, 0.0)
        other = np.where(i >= j, (guesses - i) / canaries, 0.0)
        rows.append(told - slopes[:, None] * other)
        bounds.append(y - slopes * x)
    rows, bounds = np.concatenate(rows), np.concatenate(bounds)
    scale = np.maximum(1.0, np.abs(rows).max(axis=1))
    solution = optimize.linprog(
        -(i >= correct).astype(float),
        A_ub=rows / scale[:, None],
        b_ub=bounds / scale,
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    assert solution.status == 0
    return -solution.fun


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "mu"),
    [(3, 4, 4, 0.5), (4, 4, 4, 1.0), (8, 10, 12, 1.0), (15, 20, 60, 0.7), (20, 20, 60, 1.5)],
)
def test_recursion_is_the_best_use_of_the_inequalities(correct, guesses, canaries, mu):
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        refuted = _refuted(correct, guesses, canaries, mu, middle)
        low, high = (low, middle) if refuted else (middle, high)
    exact = largest_tail(correct, guesses, canaries, mu)
    assert high == pytest.approx(exact, rel=2e-3)
    assert 0.001 < exact < 0.999


def test_numbers_of_published_code():
    for counts, epsilon in PUBLISHED.items():
        found = gaussian_epsilon(mu_lower_bound_of_guesses(*counts), 1e-5)
        assert found == pytest.approx(epsilon, rel=1e-4), counts


def test_more_is_shown_than_by_epsilon_at_one_delta():
    rng = np.random.default_rng(0)
    coins = rng.integers(0, 2, 5000)
    scores = coins - 0.5 + rng.normal(size=5000)
    order = np.argsort(-np.abs(scores))[:250]
    correct = int(np.sum((scores[order] > 0) == coins[order]))
    mu = mu_lower_bound_of_guesses(correct, 250, 5000)
    assert 0.5 < mu < 1.0
    other = epsilon_lower_bound_of_guesses(correct, 250, 5000, 1e-5)
    assert gaussian_epsilon(mu, 1e-5) > other > 0


def test_nothing_is_shown():
    assert mu_lower_bound_of_guesses(0, 10, 10) == 0.0
    assert mu_lower_bound_of_guesses(5, 10, 100) == 0.0
    assert mu_lower_bound_of_guesses(10, 10, 10, 1 - 1e-9) == 0.0
