"""tfdp.accounting.losses.groups: the pairs of groups against the integral and against scaling."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tfdp.accounting.losses.groups import GROUP_PAIRS
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BoundedRange,
    FixedSizeGaussian,
    PureEpsilon,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    TruncatedGaussian,
)

EPSILONS = (-3.0, -0.5, -0.01, 0.0, 0.003, 0.2, 1.0, 4.0)


def _delta(pair, epsilon):
    """Returns P(L > epsilon) - e^epsilon Q(L > epsilon)."""
    p, q = pair.cells(np.array([epsilon]))
    return p[1] - math.exp(epsilon) * q[1]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("q", "size"), [(0.3, 2), (0.01, 5)])
def test_group_of_sampled_gaussian_equals_the_integral(q, size, epsilon):
    z = 0.9
    weights = stats.binom.pmf(np.arange(size + 1), size, q)
    x = np.linspace(-12, size + 12, 400_001)
    without = stats.norm.pdf(x, 0, z)
    within = sum(w * stats.norm.pdf(x, i, z) for i, w in enumerate(weights))
    removed, added = GROUP_PAIRS[SampledGaussian](SampledGaussian(q, z), size)
    for pair, p, r in ((removed, within, without), (added, without, within)):
        exact = integrate.trapezoid(np.maximum(0, p - math.exp(epsilon) * r), x)
        assert _delta(pair, epsilon) == pytest.approx(exact, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("q", "size", "z"), [(0.3, 2, 0.9), (0.01, 5, 0.9), (0.9, 8, 3.0)])
def test_losses_of_a_group_are_hardly_ever_beyond_their_bounds(q, size, z):
    for pair in GROUP_PAIRS[SampledGaussian](SampledGaussian(q, z), size):
        for log_tail in (-3.0, -20.0):
            for side, (low, high) in enumerate(pair.bounds(log_tail)):
                cells = pair.cells(np.array([low, high]))[side]
                assert cells[0] <= math.exp(log_tail) and cells[2] <= math.exp(log_tail)


def test_groups_of_what_sees_everything_are_moved_further():
    cases = [
        (SampledGaussian(1.0, 6.0), SampledGaussian(1.0, 2.0)),
        (SampledLaplace(1.0, 6.0), SampledLaplace(1.0, 2.0)),
        (PureEpsilon(0.1), PureEpsilon(0.3)),
        (BoundedRange(0.1), BoundedRange(0.3)),
        # Without amplification.
        (FixedSizeGaussian(1, 10, 6.0), SampledGaussian(1.0, 2.0)),
        (RemoveThenAdd(SampledGaussian(0.1, 12.0)), SampledGaussian(1.0, 2.0)),
        (AllocatedGaussian(10, 6.0), SampledGaussian(1.0, 2.0)),
        # Without it, and each unit may drive another one out.
        (TruncatedGaussian(0.1, 1e-3, 12.0, False), SampledGaussian(1.0, 2.0)),
        (TruncatedGaussian(0.1, 1e-3, 12.0, True), SampledGaussian(1.0, 2.0)),
    ]
    for mechanism, expected in cases:
        (pair,) = GROUP_PAIRS[type(mechanism)](mechanism, 3)
        (other,) = PAIRS[type(expected)](expected)
        for epsilon in EPSILONS:
            assert _delta(pair, epsilon) == pytest.approx(_delta(other, epsilon), rel=1e-9)
