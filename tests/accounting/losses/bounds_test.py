"""tfdp.accounting.losses.bounds: the truth, where it is known exactly, lies between the bounds."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.losses.bounds import DeltaBounds, _psi
from tfdp.accounting.losses.grid import add_losses, round_losses
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.losses.window import make_window
from tfdp.accounting.mechanisms import PureEpsilon, SampledGaussian


def _bounds(mechanism, count, interval, tilt, direction=0):
    pair = PAIRS[type(mechanism)](mechanism)[direction]
    steps = [(round_losses(pair, interval, -60.0), count)]
    return DeltaBounds(add_losses(steps, make_window(steps, tilt, -40.0)))


@pytest.mark.parametrize(
    ("z", "count", "interval", "tilt"),
    [(1.0, 1, 0.02, 3.0), (4.0, 9, 0.01, 5.0), (40.0, 1000, 2e-3, 5.0), (0.3, 1, 0.1, 1.5)],
)
def test_gaussians_lie_between_the_bounds(z, count, interval, tilt):
    # Gaussians add up: n of them with multiplier z are one with multiplier z / sqrt(n).
    mu = math.sqrt(count) / z
    bounds = _bounds(SampledGaussian(1.0, z), count, interval, tilt)
    for delta in (1e-2, 1e-5, 1e-9):
        exact = gaussian_epsilon(mu, delta)
        lower, upper = bounds.lower_epsilon(delta), bounds.upper_epsilon(delta)
        assert lower < exact < upper
        # Of second order: noise of variance n h^2 / 6 raises epsilon by half of it times 1 + tilt.
        local_tilt = (exact / mu + mu / 2) / mu
        expected = count * interval**2 / 6 * (1 + local_tilt) / 2
        if count > 1:
            assert upper - exact == pytest.approx(expected, rel=0.25)
            if 0.8 < tilt / local_tilt < 1.25:
                assert abs(bounds.estimated_epsilon(delta) - exact) < 0.3 * (upper - exact)
        else:  # At losses of the grid delta is exact.
            assert upper - exact < 2 * expected
        assert exact - lower < 60 * expected
        epsilon = exact * 1.01
        exact_delta = gaussian_delta(mu, epsilon)
        assert bounds.lower_delta(epsilon) < exact_delta < bounds.upper_delta(epsilon)


@pytest.mark.parametrize("count", [1, 2, 7, 60, 400])
def test_randomized_response_lies_between_the_bounds(count):
    epsilon = 0.3
    bounds = _bounds(PureEpsilon(epsilon), count, 0.3 / 64.3 / math.sqrt(count), 6 / count**0.5)
    p = special.expit(epsilon)
    ones = np.arange(count + 1)
    weights, losses = stats.binom.pmf(ones, count, p), (2 * ones - count) * epsilon

    def exact(at):
        return float(weights @ np.maximum(0.0, -np.expm1(at - losses)))

    seen = 0
    for at in np.linspace(0, min(count * epsilon, 30.0), 40):
        lower, upper = bounds.lower_delta(at), bounds.upper_delta(at)
        assert lower <= exact(at) <= upper
        seen += lower > 0.8 * exact(at) > 1e-30
    assert seen > 5


def test_the_lower_bound_needs_what_it_subtracts():
    # The rounded delta is above the truth by much more than all other errors.
    bounds = _bounds(SampledGaussian(1.0, 4.0), 9, 0.02, 5.0)
    epsilon = 2.0
    exact = gaussian_delta(0.75, epsilon)
    rounded = bounds._at(bounds._delta, epsilon)
    others = float(bounds._unit(epsilon)) * (bounds._rounding + bounds._losses.wrapped)
    assert rounded - exact > 100 * (others + bounds._losses.cut)
    assert bounds._excess(epsilon, rounded) > rounded - exact


def test_two_sampled_gaussians_lie_between_the_bounds():
    # delta(epsilon) of two steps is that of the second, at epsilon less the loss of the first.
    q, z = 0.1, 0.8
    pairs = PAIRS[SampledGaussian](SampledGaussian(q, z))
    x = np.linspace(-12 * z, 1 + 12 * z, 40_001)
    ratio = np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))
    density = stats.norm.pdf(x, 0, z)
    for direction, pair in enumerate(pairs):
        losses, weights = (ratio, density * np.exp(ratio)) if not direction else (-ratio, density)
        bounds = _bounds(SampledGaussian(q, z), 2, 2e-4, 12.0 if direction else 4.0, direction)
        for epsilon in (0.02, 0.15) if direction else (0.2, 1.0, 3.0):
            p, r = (np.cumsum(c[::-1])[::-1] for c in pair.cells(np.sort(epsilon - losses)))
            one = p[1:] - np.exp(np.sort(epsilon - losses)) * r[1:]
            one = one if direction else one[::-1]
            exact = float(integrate.trapezoid(one * weights, x))
            assert bounds.lower_delta(epsilon) < exact < bounds.upper_delta(epsilon)
            assert bounds.lower_delta(epsilon) > 0.9 * exact
            assert bounds.upper_delta(epsilon) < 1.001 * exact


@pytest.mark.parametrize(("s", "mean"), [(0.01, 5e-5), (0.3, 0.045), (2.0, 2.0)])
@pytest.mark.parametrize("distance", [0.0, 0.003, 0.1, 1.0, 7.0])
def test_psi_bounds_the_integral(s, mean, distance):
    def integrand(y):
        return math.exp(y - distance) * min(1.0, math.exp(-(max(0.0, y - mean) ** 2) / (2 * s * s)))

    ends = [distance, max(distance, mean), max(distance, mean) + s, max(distance, mean) + 60 * s]
    exact = sum(
        integrate.quad(integrand, a, b, limit=200)[0]
        for a, b in zip(ends[:-1], ends[1:], strict=True)
    )
    found = float(_psi(np.array(distance), s, mean))
    assert exact * (1 - 1e-6) - 1e-12 <= found <= exact * (1 + 1e-6) + 1e-12


def test_outside_its_window_nothing_is_claimed():
    bounds = _bounds(SampledGaussian(1.0, 1.0), 1, 0.02, 3.0)
    assert bounds.upper_delta(-1e3) == 1
    assert bounds.lower_delta(-1e3) == 0
    assert bounds.lower_delta(1e3) == 0
    assert 0 < bounds.upper_delta(1e3) < 1e-9
    assert bounds.upper_epsilon(1e-300) == math.inf
    assert bounds.lower_epsilon(1e-300) == 0


def test_every_error_of_a_sum_is_in_its_bounds():
    steps = [(round_losses(PAIRS[SampledGaussian](SampledGaussian(1.0, 1.0))[0], 2e-3, -60.0), 2)]
    losses = add_losses(steps, make_window(steps, 3.0, -40.0))
    names = ("wrapped", "lost", "transformed", "moved", "scaled", "infinite", "cut")
    losses = dataclasses.replace(losses, **dict.fromkeys(names, 0.0))
    k = np.searchsorted(losses.first + np.arange(len(losses.atoms)), 750)
    epsilon = float(losses.first + k) * losses.interval
    upper, lower = (
        DeltaBounds(losses).upper_delta(epsilon),
        DeltaBounds(losses).lower_delta(epsilon),
    )
    assert 0.9 * upper < lower < upper
    unit = math.exp(losses.log_scale - losses.tilt * epsilon)
    above = losses.interval * np.arange(len(losses.atoms) - k)
    kernel = np.exp(-losses.tilt * above) * -np.expm1(-above)
    # By so much each may change delta, once up and once down.
    errors = {
        "wrapped": (0, unit),
        "lost": (1, 0),
        "transformed": (unit * np.linalg.norm(kernel),) * 2,
        "moved": (unit, unit),
        "scaled": (upper, lower),
        "infinite": (1, 0),
        "cut": (0, 1),
    }
    for name, (up, down) in errors.items():
        size = 1e-3 * upper / max(up, down)
        wider = DeltaBounds(dataclasses.replace(losses, **{name: size}))
        raised, lowered = wider.upper_delta(epsilon) - upper, lower - wider.lower_delta(epsilon)
        for found, change in ((raised, up * size), (lowered, down * size)):
            assert change * (1 - 1e-6) <= found, name
            assert found <= 30 * change or not change, name
