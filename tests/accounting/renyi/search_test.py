"""tfdp.accounting.renyi.search: the minimum, wherever it is and however sharp."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting.renyi.conversion import epsilon_at_order, log_odds_of_delta
from tfdp.accounting.renyi.gaussian import SampledGaussians
from tfdp.accounting.renyi.search import minimize_over_orders


def _counted(function):
    calls = []

    def values(orders):
        calls.append(orders)
        return np.array([function(float(order)) for order in orders])

    return values, calls


@pytest.mark.parametrize("best", [1 + 1e-6, 1.3, 7.9, 8.0, 500.0, 1e9])
@pytest.mark.parametrize("inverse", [True, False])
def test_finds_a_smooth_minimum(best, inverse):
    # Convex in 1 / (order - 1) and in order - 1.
    values, calls = _counted(lambda order: 3 + (order - 1) / (best - 1) + (best - 1) / (order - 1))
    order, value = minimize_over_orders(values, inverse=inverse)
    assert value == pytest.approx(5, rel=1e-6)
    assert value >= 5
    assert order == pytest.approx(best, rel=1e-2, abs=1e-2 * (best - 1))
    assert len(calls) < 40


@settings(max_examples=100)
@given(st.floats(-3, 8), st.floats(-2, 8), st.booleans())
def test_finds_the_foot_of_a_wall(log_foot, log_steepness, inverse):
    foot, steepness = math.exp(log_foot), math.exp(log_steepness)
    values, _ = _counted(
        lambda order: foot / (order - 1) + max(0.0, steepness * ((order - 1) / foot - 1))
    )
    # With y the distance in feet, 1 / y + steepness (y - 1) beyond 1, is lowest at 1 or where
    # y^2 = 1 / steepness. No slope is known nearer to the foot than where it was measured.
    lowest = 1.0 if steepness > 1 else 2 * math.sqrt(steepness) - steepness
    value = minimize_over_orders(values, inverse=inverse)[1]
    assert lowest * (1 - 1e-12) <= value <= lowest * (1 + 1e-6 + 5e-6 * steepness)


def test_infinite_at_large_orders():
    values, _ = _counted(lambda order: math.inf if order > 3 else 1 / (order - 1))
    order, value = minimize_over_orders(values, inverse=True)
    assert order <= 3
    assert value == pytest.approx(0.5, rel=1e-3)


def test_infinite_everywhere():
    values, _ = _counted(lambda order: math.inf)
    assert minimize_over_orders(values, inverse=True)[1] == math.inf


def test_zero_is_good_enough():
    values, calls = _counted(lambda order: 0.0)
    assert minimize_over_orders(values, inverse=True)[1] == 0
    assert len(calls) <= 2


@pytest.mark.parametrize("falling", [True, False])
def test_no_minimum_ends_at_an_end(falling):
    values, _ = _counted(lambda order: 1 + (1 / order if falling else order - 1))
    assert minimize_over_orders(values, inverse=True)[1] == pytest.approx(1, abs=1e-8)


def test_start_changes_little():
    values, _ = _counted(lambda order: order / 8 + 11 / (order - 1))
    first = minimize_over_orders(values, inverse=True)[1]
    for start in (1.01, 3.0, 900.0):
        other = minimize_over_orders(values, inverse=True, first=start, factor=1.1)[1]
        assert other == pytest.approx(first, rel=4e-7)


@pytest.mark.parametrize(
    ("q", "z", "steps", "delta"),
    [
        (0.01, 4.0, 10_000, 1e-5),
        (0.9, 1.0, 20, 1e-9),
        # A wall: beyond the best order everybody is seen.
        (3.6e-4, 2.2, 13_756, 7e-8),
        (4.5e-4, 12.0, 32, 1.5e-7),
        (1.7e-5, 0.71, 9, 5.7e-7),
        (6.4e-5, 27.5, 380, 6.5e-10),
        (6.7e-3, 26.9, 1, 2.4e-8),
    ],
)
def test_equals_a_dense_grid_of_orders(q, z, steps, delta):
    gaussians = SampledGaussians(np.array([q]), np.array([z]))

    def epsilons(orders):
        rdp = steps * gaussians.rdp(orders)[0]
        return np.array([epsilon_at_order(a, r, delta) for a, r in zip(orders, rdp, strict=True)])

    order, epsilon = minimize_over_orders(epsilons, inverse=True)
    best = order
    for width in (1.0, 1e-2, 1e-4):
        grid = 1 + (best - 1) * np.exp(np.linspace(-width, width, 101))
        best = grid[np.argmin(epsilons(grid))]
    least = epsilons(np.array([best]))[0]
    assert epsilon == pytest.approx(least, rel=1e-6)

    def log_odds(orders):
        rdp = steps * gaussians.rdp(orders)[0]
        pairs = zip(orders, rdp, strict=True)
        return np.array([log_odds_of_delta(a, r, epsilon) for a, r in pairs])

    value = minimize_over_orders(log_odds, inverse=False)[1]
    assert value == pytest.approx(math.log(delta), abs=2e-5)
