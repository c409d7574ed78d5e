"""tfdp.accounting.renyi.allocation: an upper bound at every order, exact at integer ones."""

import math

import mpmath
import numpy as np
import pytest

from tfdp.accounting.losses.allocation import allocation_ratio
from tfdp.accounting.mechanisms import AllocatedGaussian
from tfdp.accounting.renyi.allocation import (
    _added,
    _removed,
    allocated_gaussian_curve,
    rdp_allocated_gaussian,
)

KINDS = [(2, 1.0), (3, 0.7), (10, 0.6), (100, 4.0), (1000, 0.7), (5000, 1.0), (400, 20.0)]


def _log_moments(t, z, most):
    """log E_Q[R^a], a = 0, ..., most: a! / t^a [x^a] (sum_k E[Y^k] x^k / k!)^t, to forty digits."""
    with mpmath.workdps(40):
        once = [
            mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * mpmath.mpf(z) ** 2)) / mpmath.factorial(k)
            for k in range(most + 1)
        ]

        def times(u, v):
            return [mpmath.fsum(u[i] * v[n - i] for i in range(n + 1)) for n in range(most + 1)]

        total = [mpmath.mpf(1)] + [mpmath.mpf(0)] * most
        for digit in f"{t:b}":
            total = times(total, total)
            total = times(total, once) if digit == "1" else total
        return [
            float(mpmath.log(c * mpmath.factorial(a) / mpmath.mpf(t) ** a))
            for a, c in enumerate(total)
        ]


def test_moments_are_those_of_all_allocations():
    # Two steps, order 2: (E[Y^2] + 1) / 2. Three steps, order 3: by its 27 terms.
    e, t = math.e, 3
    assert _log_moments(2, 1.0, 2)[2] == pytest.approx(math.log((e + 1) / 2))
    terms = [t * e**3, t * (t - 1) * 3 * e, t * (t - 1) * (t - 2)]
    assert _log_moments(t, 1.0, 3)[3] == pytest.approx(math.log(sum(terms) / 27))


@pytest.mark.parametrize(("t", "z"), KINDS)
def test_integer_orders_are_exact_where_a_unit_is_removed(t, z):
    orders = np.array([2.0, 3.0, 8.0, 20.0, 32.0])
    moments = _log_moments(t, z, 32)
    exact = np.array([moments[int(a)] for a in orders]) / (orders - 1)
    found = rdp_allocated_gaussian(t, z, orders)
    assert np.all(found >= exact * (1 - 1e-12))
    assert np.all(found <= exact * (1 + 2e-4) + 2e-10)
    # The grid alone is an upper bound too, and close where orders are moderate.
    grid = _removed(allocation_ratio(t, z), t, z, orders) / (orders - 1)
    assert np.all(grid >= exact * (1 - 1e-12))
    assert grid[0] < exact[0] * 1.001


def _two_steps(z, a):
    """log E_Q[R^(1 - a)] for t = 2, by its two integrals."""
    x, weights = np.polynomial.hermite_e.hermegauss(180)
    weights = weights / weights.sum()
    y = np.exp(x / z - 0.5 / z / z)
    ratio = np.add.outer(y, y) / 2
    return math.log(weights @ ratio ** (1 - a) @ weights)


@pytest.mark.parametrize(("z", "a"), [(1.0, 2.0), (1.0, 5.0), (5.0, 8.0), (0.7, 1.5)])
def test_a_unit_that_is_added(z, a):
    found = float(_added(allocation_ratio(2, z), 2, z, np.array([a]))[0])
    exact = _two_steps(z, a)
    assert exact * (1 - 1e-9) <= found <= exact * 1.001


@pytest.mark.parametrize(("t", "z"), KINDS)
def test_adding_a_unit_is_cheaper_than_removing_one_at_large_orders(t, z):
    orders = np.array([2.0, 20.0])
    removed = np.array([_log_moments(t, z, 20)[2], _log_moments(t, z, 20)[20]])
    added = _added(allocation_ratio(t, z), t, z, orders)
    assert np.all(added <= removed * 1.001)
    # An upper bound of that at which R would always be its mean, zero.
    assert np.all(added > 0)


@pytest.mark.parametrize(("t", "z"), [(2, 0.05), (2, 1e4), (2**20, 0.05), (2**20, 1e4), (9, 2.0)])
def test_everywhere_finite_increasing_and_below_a_unit_whose_step_is_known(t, z):
    orders = np.concatenate([1 + np.geomspace(1e-3, 1, 20), np.geomspace(2.1, 1e6, 60)])
    found = rdp_allocated_gaussian(t, z, orders)
    known = orders / 2 / z / z
    assert np.all(np.isfinite(found)) and np.all(found > 0)
    assert np.all(found <= known)
    # P is at least one of its t parts, and D(P || Q) at least what that part has.
    assert np.all(found >= known - math.log(t) * orders / (orders - 1))
    assert np.all(np.diff(found) >= -0.01 * found[1:])


def test_counts_multiply():
    mechanisms = [AllocatedGaussian(5, 1.0), AllocatedGaussian(6, 2.0)]
    orders = np.array([1.5, 4.0])
    total = allocated_gaussian_curve(mechanisms, np.array([2.0, 3.0]))(orders)
    parts = [rdp_allocated_gaussian(5, 1.0, orders), rdp_allocated_gaussian(6, 2.0, orders)]
    assert total == pytest.approx(2 * parts[0] + 3 * parts[1])
