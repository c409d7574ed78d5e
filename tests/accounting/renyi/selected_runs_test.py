"""The best of K runs, against its exact distribution."""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from tfdp.accounting.renyi.pure import rdp_pure_epsilon
from tfdp.accounting.renyi.selected_runs import (
    best_of_poisson_runs,
    best_of_runs,
    log_mean_runs,
)

ORDERS = np.array([1.01, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0])
SHAPES = [(1.0, 0.1), (1.0, 0.001), (0.0, 0.01), (-0.5, 0.001), (3.0, 0.2)]


def _generating(shape, gamma):
    """Returns x -> E[x^K] and its derivative (of definition 1, by the binomial series)."""
    if shape == 0:
        return (
            lambda x: np.log(1 - (1 - gamma) * x) / math.log(gamma),
            lambda x: -(1 - gamma) / (1 - (1 - gamma) * x) / math.log(gamma),
        )
    scale = gamma**-shape - 1
    return (
        lambda x: ((1 - (1 - gamma) * x) ** -shape - 1) / scale,
        lambda x: shape * (1 - gamma) * (1 - (1 - gamma) * x) ** (-shape - 1) / scale,
    )


def _poisson(mean):
    return (lambda x: np.exp(mean * (x - 1)), lambda x: mean * np.exp(mean * (x - 1)))


def _divergences(p, q):
    logs = np.log(p), np.log(q)
    return np.array([special.logsumexp(a * logs[0] + (1 - a) * logs[1]) for a in ORDERS]) / (
        ORDERS - 1
    )


def _best(probabilities, generating):
    """Returns the probabilities of the best output, where outputs are in ascending order."""
    return np.diff(generating(np.concatenate([[0.0], np.cumsum(probabilities)])))


@pytest.mark.parametrize(("shape", "gamma"), SHAPES)
def test_mean_of_the_number_of_runs(shape, gamma):
    _, derivative = _generating(shape, gamma)
    assert math.exp(log_mean_runs(shape, gamma)) == pytest.approx(derivative(1.0), rel=1e-9)


def _worst_pure(epsilon, generating):
    """Returns the largest exact divergences, and loss, over many pure pairs of three outputs."""
    worst, loss = np.zeros(len(ORDERS)), 0.0
    for rare in np.geomspace(1e-6, 0.3, 40):
        # The best output is rare, and the more likely under P; the worst output the other way.
        for low in (0.0, 0.01, 0.3):
            q = np.array([low, 1 - low - rare, rare])
            p = np.array([low * math.exp(-epsilon), 0.0, rare * math.exp(epsilon)])
            p[1] = 1 - p.sum()
            if p[1] <= q[1] * math.exp(-epsilon) or p[1] > q[1] * math.exp(epsilon):
                continue
            a, b = _best(p, generating), _best(q, generating)
            keep = (a > 1e-290) & (b > 1e-290)
            ratios = np.log(a[keep] / b[keep])
            loss = max(loss, np.abs(ratios).max())
            for one, other in ((a, b), (b, a)):
                worst = np.maximum(worst, _divergences(one[keep], other[keep]))
    return worst, loss


@pytest.mark.parametrize(("shape", "gamma"), SHAPES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_bound_holds_for_pure_runs_and_is_not_idle(shape, gamma, epsilon):
    worst, loss = _worst_pure(epsilon, _generating(shape, gamma)[0])
    bound = best_of_runs(lambda orders: rdp_pure_epsilon(epsilon, orders), shape, gamma)(ORDERS)
    assert np.all(worst <= bound)
    assert loss <= (2 + shape) * epsilon * (1 + 1e-9)
    # The best of runs costs more than one run: a price of epsilon would be wrong.
    assert loss > 1.05 * epsilon


def _gaussian_best(shift, generating, derivative):
    """Returns the exact divergences of the best of K Gaussian scores."""

    def log_density(x, mean):
        return stats.norm.logpdf(x, mean) + np.log(derivative(stats.norm.cdf(x, mean)))

    def divergence(a, one, other):
        x = np.linspace(-12.0, 14.0, 4001)
        logs = a * log_density(x, one) + (1 - a) * log_density(x, other)
        # Without a run nothing is known, on both sides alike.
        value = integrate.simpson(np.exp(logs), x=x) + generating(0.0)
        return math.log(value) / (a - 1)

    orders = ORDERS[(ORDERS >= 1.5) & (ORDERS <= 5)]
    pairs = [(0.0, shift), (shift, 0.0)]
    return orders, np.max([[divergence(a, *pair) for a in orders] for pair in pairs], axis=0)


@pytest.mark.parametrize("kind", [*SHAPES, 10.0, 300.0])
def test_bound_holds_for_gaussian_scores(kind):
    shift = 0.3

    def run(orders):
        return orders * shift**2 / 2

    if isinstance(kind, tuple):
        generating, bound = _generating(*kind), best_of_runs(run, *kind)
    else:
        generating, bound = _poisson(kind), best_of_poisson_runs(run, kind)
    orders, exact = _gaussian_best(shift, *generating)
    assert np.all(exact <= bound(orders))
    if kind != (-0.5, 0.001):  # Where two thirds of the searches end after the first run.
        assert np.all(exact > 1.05 * run(orders)), "one run's price would be wrong"


def test_bound_is_that_of_the_paper():
    # Theorem 2 of arXiv:2110.03620, by a search over a fine grid for a Gaussian run.
    rho, shape, gamma = 0.05, 1.0, 0.1

    def run(orders):
        return rho * orders

    b = np.geomspace(1.0 + 1e-9, 1e4, 200_001)
    least = np.min((1 - 1 / b) * run(b) + math.log(1 / gamma) / b)
    expected = run(ORDERS) + 2 * least + math.log(10.0) / (ORDERS - 1)
    np.testing.assert_allclose(best_of_runs(run, shape, gamma)(ORDERS), expected, rtol=1e-6)
