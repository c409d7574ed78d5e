"""Every dominating pair against the densities, or the mechanism, that it stands for."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from tfdp.accounting.losses.groups import GROUP_PAIRS
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.mechanisms import (
    BoundedRange,
    FixedSizeGaussian,
    PureEpsilon,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)

EPSILONS = (-3.0, -0.5, -0.01, 0.0, 0.003, 0.2, 1.0, 4.0)


def _delta(pair, epsilon):
    """Returns P(L > epsilon) - e^epsilon Q(L > epsilon)."""
    p, q = pair.cells(np.array([epsilon]))
    return p[1] - math.exp(epsilon) * q[1]


def _integral(p, q, epsilon, x):
    """Returns the integral of max(0, p - e^epsilon q)."""
    return float(integrate.trapezoid(np.maximum(0.0, p - math.exp(epsilon) * q), x))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("q", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("law", [stats.norm, stats.laplace], ids=["gaussian", "laplace"])
def test_sampled_noise_equals_the_integral(law, q, epsilon):
    scale = 0.7
    kind = SampledGaussian if law is stats.norm else SampledLaplace
    pairs = PAIRS[kind](kind(q, scale))
    assert len(pairs) == (1 if q == 1 else 2)

    # 0 and 1, where Laplace densities have a kink, are among these.
    x = np.linspace(-15, 16, 31 * 20_000 + 1)
    without, whole = law.pdf(x, 0, scale), law.pdf(x, 1, scale)
    within = (1 - q) * without + q * whole
    removed = _integral(within, without, epsilon, x)
    assert _delta(pairs[0], epsilon) == pytest.approx(removed, rel=1e-6, abs=1e-8)
    added = _integral(without, within, epsilon, x)
    assert _delta(pairs[-1], epsilon) == pytest.approx(added, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("q", [1e-6, 0.01, 0.9])
def test_relative_accuracy_of_small_deltas(q):
    # For epsilon >= 0 a sample makes (epsilon, delta) of (log(1 + q (e^epsilon - 1)), q delta).
    (pair, _) = PAIRS[SampledGaussian](SampledGaussian(q, 1.0))
    for before in (0.5, 8.0, 20.0):
        epsilon = math.log1p(q * math.expm1(before))
        exact = q * _delta(PAIRS[SampledGaussian](SampledGaussian(1.0, 1.0))[0], before)
        assert _delta(pair, epsilon) == pytest.approx(exact, rel=1e-7)


def _mechanism_deltas(first, second, z, epsilon):
    """Returns delta of two mixtures of Gaussians with these means, all equally likely."""

    x = np.linspace(-3 - 9 * z, 3 + 9 * z, 20_001)
    p, q = (np.mean(stats.norm.pdf(x[:, None], m, z), axis=1) for m in (first, second))
    return _integral(p, q, epsilon, x)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_fixed_size_dominates_the_mechanism(epsilon):
    # Samples of 2 of 4 numbers in [-1, 1], of which the first is replaced: sums move by 2 at most.
    rng = np.random.default_rng(5)
    z = 0.8
    (pair,) = PAIRS[FixedSizeGaussian](FixedSizeGaussian(2, 4, z))
    bound = _delta(pair, epsilon)
    worst = 0.0
    data_sets = [rng.uniform(-1, 1, 5) for _ in range(10)]
    data_sets += [np.array(d) for d in itertools.product([-1.0, 1.0], repeat=5) if d[0] != d[4]]
    for *others, replaced in data_sets:
        sums = [
            [sum(pair) for pair in itertools.combinations(data, 2)]
            for data in (others, [replaced, *others[1:]])
        ]
        worst = max(worst, _mechanism_deltas(*sums, 2 * z, epsilon))
    assert worst <= bound * (1 + 1e-6) + 1e-9
    if epsilon >= 0 and bound > 1e-3:
        # The worst has all others at one end; the bound allows the sums of samples to differ.
        assert worst > 0.8 * bound


def test_fixed_size_is_its_own_reverse_and_whole():
    (pair,) = PAIRS[FixedSizeGaussian](FixedSizeGaussian(3, 10, 0.8))
    for count in (300, 301):  # Without and with an edge at zero.
        p, q = pair.cells(np.linspace(-6, 6, count))
        assert p.sum() == pytest.approx(1, rel=1e-12)
        assert q.sum() == pytest.approx(1, rel=1e-12)
        if count == 300:
            np.testing.assert_allclose(p, q[::-1], atol=1e-13)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_bounded_range_is_the_worst_of_all_exponential_mechanisms(epsilon):
    r = 1.3
    (pair,) = PAIRS[BoundedRange](BoundedRange(r))
    t = np.linspace(0, r, 100_001)
    p = (math.exp(r) - np.exp(t)) / math.expm1(r)
    low = 1 - p
    deltas = p * np.maximum(0, -np.expm1(epsilon - t))
    deltas += low * np.maximum(0, -np.expm1(epsilon - t + r))
    assert _delta(pair, epsilon) == pytest.approx(deltas.max(), abs=1e-9)


def _discrete_delta(p, q, epsilon):
    return sum(max(0.0, a - math.exp(epsilon) * b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("p", "k"), [(0.5, 2), (0.1, 10), (0.99, 3)])
def test_randomized_response_equals_the_sum(p, k, epsilon):
    own, other = 1 - p + p / k, p / k
    first, second = [own] + [other] * (k - 1), [other, own] + [other] * (k - 2)
    (pair,) = PAIRS[RandomizedResponse](RandomizedResponse(p, k, from_uniform=False))
    assert _delta(pair, epsilon) == pytest.approx(
        _discrete_delta(first, second, epsilon), abs=1e-12
    )
    removed, added = PAIRS[RandomizedResponse](RandomizedResponse(p, k, from_uniform=True))
    uniform = [1 / k] * k
    exact = _discrete_delta(first, uniform, epsilon), _discrete_delta(uniform, first, epsilon)
    assert _delta(removed, epsilon) == pytest.approx(exact[0], abs=1e-12)
    assert _delta(added, epsilon) == pytest.approx(exact[1], abs=1e-12)


def test_pure_epsilon_is_binary_randomized_response():
    (pair,) = PAIRS[PureEpsilon](PureEpsilon(0.8))
    p = math.exp(0.8) / (1 + math.exp(0.8))
    for epsilon in EPSILONS:
        exact = _discrete_delta([p, 1 - p], [1 - p, p], epsilon)
        assert _delta(pair, epsilon) == pytest.approx(exact, abs=1e-15)


MECHANISMS = [
    SampledGaussian(1.0, 0.5),
    SampledGaussian(0.02, 1.5),
    SampledLaplace(1.0, 0.5),
    SampledLaplace(0.02, 0.5),
    FixedSizeGaussian(1, 50, 0.6),
    BoundedRange(0.7),
    PureEpsilon(0.7),
    RandomizedResponse(0.3, 4, False),
    RandomizedResponse(0.3, 4, True),
]


@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_cells_have_the_losses_that_they_say(mechanism, group_size):
    pairs = PAIRS if group_size == 1 else GROUP_PAIRS
    arguments = (mechanism,) if group_size == 1 else (mechanism, group_size)
    for pair in pairs[type(mechanism)](*arguments):
        edges = np.linspace(-4, 4, 161) + 1e-4
        p, q = pair.cells(edges)
        assert p.min() >= 0
        assert q.min() >= 0
        assert p.sum() == pytest.approx(1, rel=1e-12)
        assert q.sum() == pytest.approx(1, rel=1e-12)
        inner_p, inner_q = p[1:-1], q[1:-1]
        tolerance = 1e-13
        assert np.all(inner_p >= np.exp(edges[:-1]) * inner_q * (1 - 1e-9) - tolerance)
        assert np.all(inner_p <= np.exp(edges[1:]) * inner_q * (1 + 1e-9) + tolerance)


@pytest.mark.parametrize("log_tail", [-10.0, -60.0])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_bounds_leave_out_little(mechanism, log_tail):
    for pair in PAIRS[type(mechanism)](mechanism):
        for bounds, number in zip(pair.bounds(log_tail), (0, 1), strict=True):
            low, high = (bound + sign * 1e-9 for bound, sign in zip(bounds, (-1, 1), strict=True))
            cells = pair.cells(np.array([low, high]))[number]
            assert cells[0] <= math.exp(log_tail)
            assert cells[2] <= math.exp(log_tail)
