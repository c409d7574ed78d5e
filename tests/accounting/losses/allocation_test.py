"""tfdp.accounting.losses.allocation: never below the truth, and hardly above it."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import make_accountant
from tfdp.accounting.losses.allocation import allocation_pairs, allocation_ratio
from tfdp.accounting.mechanisms import AllocatedGaussian
from tfdp.events import (
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    RandomAllocationSampling,
    SampledEvent,
)

ZERO = NeighboringRelation.ZERO_OUT
# 1e-9 on both sides of a normal distribution.
ALARM = 6.2


def _passes(t, z, count, name="prv", k=1):
    accountant = make_accountant(name)
    for i in range(count):
        sampling = RandomAllocationSampling(t, k, None, i)
        accountant.compose(SampledEvent(sampling, GaussianSumEvent(1.0, z), ZERO), t)
    return accountant


def _two_steps(z, epsilon):
    """Delta of t = 2 in both directions, by integration over the first output."""
    with mpmath.workdps(40):
        z, bound = mpmath.mpf(z), mpmath.exp(epsilon)

        def y(x):
            return mpmath.exp((2 * x - 1) / (2 * z * z))

        def second(need):
            # The x_2 with Y_2 = need.
            return z * z * mpmath.log(need) + mpmath.mpf(1) / 2 if need > 0 else -mpmath.inf

        def above(at, mean):
            return mpmath.ncdf((mean - at) / z) if at != -mpmath.inf else mpmath.mpf(1)

        def removed(x):
            at = second(2 * bound - y(x))
            mixed = (y(x) * above(at, 0) + above(at, 1)) / 2
            return mpmath.npdf(x, 0, z) * (mixed - bound * above(at, 0))

        def added(x):
            at = second(2 / bound - y(x))
            if at == -mpmath.inf:
                return mpmath.mpf(0)
            below = mpmath.ncdf(at / z), mpmath.ncdf((at - 1) / z)
            return mpmath.npdf(x, 0, z) * (below[0] - bound * (y(x) * below[0] + below[1]) / 2)

        kinks = [second(2 * bound), second(2 / bound)]
        ends = sorted([-14 * z, 0, 1, 15 * z + 1, *kinks])
        return float(mpmath.quad(removed, ends)), float(mpmath.quad(added, ends))


def _delta(pair_values, epsilon):
    ratio, bound = pair_values, math.exp(epsilon)
    removed = np.maximum(ratio.values - bound, 0) @ ratio.probabilities + ratio.lost
    added = np.maximum(1 - bound * ratio.values, 0) @ ratio.probabilities
    return float(removed), float(added)


@pytest.mark.parametrize(("z", "epsilon"), [(1.0, 0.5), (1.0, 3.0), (0.6, 2.0), (5.0, 0.1)])
def test_two_steps_are_integrated_to_forty_digits(z, epsilon):
    exact = _two_steps(z, epsilon)
    found = _delta(allocation_ratio(2, z), epsilon)
    for ours, truth in zip(found, exact, strict=True):
        assert truth * (1 - 1e-12) <= ours <= truth * 1.002


@pytest.mark.parametrize(("t", "z"), [(2, 0.05), (3, 1.0), (7, 0.6), (100, 4.0), (1000, 1e4)])
def test_a_ratio_is_a_probability_under_both(t, z):
    ratio = allocation_ratio(t, z)
    assert np.all(np.diff(ratio.values) > 0) and ratio.values[0] == 0
    assert np.all(ratio.probabilities >= 0)
    assert math.fsum(ratio.probabilities) == pytest.approx(1, abs=1e-12)
    assert ratio.probabilities @ ratio.values + ratio.lost == pytest.approx(1, abs=1e-12)
    # The variance of R is (e^(1 / z^2) - 1) / t; the grid makes it larger, and hardly so.
    if z >= 0.6:
        variance = ratio.probabilities @ (ratio.values - 1) ** 2
        assert 0 < variance / (math.expm1(1 / z / z) / t) - 1 < 1e-3


def _simulated(t, z, count, epsilon, size=400_000):
    """Returns delta by outputs that are drawn, both directions, each with its standard error."""
    generator = np.random.default_rng(7)
    found = []
    for removed in (True, False):
        losses = np.zeros(size)
        for _ in range(count):
            outputs = generator.normal(0, z, (size, t))
            if removed:  # The unit is there, in some step.
                outputs[:, 0] += 1
            losses += np.log(np.mean(np.exp((2 * outputs - 1) / (2 * z * z)), axis=1))
        losses = losses if removed else -losses
        shares = np.maximum(0.0, -np.expm1(epsilon - losses))
        found.append((float(shares.mean()), float(shares.std()) / math.sqrt(size)))
    return found


def test_delta_of_passes_is_that_of_outputs_that_are_drawn():
    t, z, count, epsilon = 4, 1.0, 3, 2.0
    claimed = _passes(t, z, count).get_delta(epsilon)
    truth, error = max(_simulated(t, z, count, epsilon))
    assert abs(claimed - truth) < ALARM * error + 2e-3 * truth
    # The same test tells from what other formulas say: Poisson samples, no amplification, and one
    # pass fewer.
    poisson = make_accountant("prv")
    poisson.compose(SampledEvent(PoissonSampling(1 / t), GaussianSumEvent(1.0, z), ZERO), t * count)
    for wrong in (
        poisson.get_delta(epsilon),
        make_accountant("prv").compose(GaussianSumEvent(1.0, z), count).get_delta(epsilon),
        _passes(t, z, count - 1).get_delta(epsilon),
    ):
        assert abs(wrong - truth) > 4 * ALARM * error + 2e-3 * truth


def test_k_of_t_steps_cost_no_more_than_is_charged():
    # Both units' steps: 2 of 4, whose pairs are 6 in number.
    z, epsilon, size = 1.0, 1.5, 400_000
    generator = np.random.default_rng(8)
    outputs = generator.normal(0, z, (size, 4))
    outputs[:, :2] += 1
    y = np.exp((2 * outputs - 1) / (2 * z * z))
    total = (y.sum(axis=1) ** 2 - (y * y).sum(axis=1)) / 2
    shares = np.maximum(0.0, -np.expm1(epsilon - np.log(total / 6)))
    truth, error = float(shares.mean()), float(shares.std()) / math.sqrt(size)
    claimed = _passes(4, z, 1, k=2).get_delta(epsilon)
    assert truth - ALARM * error < claimed < 1.5 * truth
    # One pass of one of two steps would be too little.
    assert _passes(2, z, 1).get_delta(epsilon) < truth - 4 * ALARM * error


def test_hundred_passes_are_as_cheap_as_poisson_samples():
    # dp-accounting and `prv` say 0.947 for as many Poisson samples.
    found = {name: _passes(100, 4.0, 100, name).get_epsilon(1e-5) for name in ("prv", "pld", "rdp")}
    assert found["prv"] == pytest.approx(0.9426, abs=2e-4)
    assert found["pld"] == pytest.approx(found["prv"], rel=1e-3)
    assert found["prv"] < found["rdp"] < 1.031


def test_pairs_are_each_others_reverse():
    removed, added = allocation_pairs(AllocatedGaussian(10, 1.0))
    edges = np.linspace(-3, 3, 13)
    (p, q), (reversed_q, reversed_p) = removed.cells(edges), added.cells(-edges[::-1])
    assert p[::-1] == pytest.approx(reversed_p) and q[::-1] == pytest.approx(reversed_q)
    assert p.sum() == pytest.approx(1, abs=1e-12) and q.sum() == pytest.approx(1, abs=1e-12)
    (low, high), (low_q, high_q) = removed.bounds(math.log(1e-9))
    for (below, above), side in (((low, high), 0), ((low_q, high_q), 1)):
        cells = removed.cells(np.array([below - 1e-9, above + 1e-9]))[side]
        assert cells[0] <= 1e-9 and cells[-1] <= 1e-9
        assert stats.norm.isf(1e-9) * 0.01 < above - below < 60
