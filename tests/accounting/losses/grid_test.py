"""tfdp.accounting.losses.grid: rounding keeps what it says, and transforms equal convolutions."""

import math

import mpmath
import numpy as np
import pytest

from tfdp.accounting.losses.bounds import DeltaBounds
from tfdp.accounting.losses.grid import Window, add_losses, round_losses, tilted
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.losses.window import make_window
from tfdp.accounting.mechanisms import (
    BoundedRange,
    FixedSizeGaussian,
    PureEpsilon,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)

MECHANISMS = [
    SampledGaussian(1.0, 0.8),
    SampledGaussian(0.02, 1.5),
    SampledLaplace(0.1, 0.5),
    FixedSizeGaussian(1, 50, 0.6),
    BoundedRange(0.7),
    PureEpsilon(0.7),
    RandomizedResponse(0.3, 4, True),
]


LOG_TAIL = -40.0


def _pairs(mechanism):
    return PAIRS[type(mechanism)](mechanism)


def _delta(pmf, epsilon):
    """Returns delta of the rounded losses, by the definition."""
    return pmf.infinite + float(pmf.atoms @ np.maximum(0.0, -np.expm1(epsilon - pmf.losses)))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_rounding_keeps_both_sums(mechanism):
    for pair in _pairs(mechanism):
        pmf = round_losses(pair, 0.05, LOG_TAIL)
        assert pmf.atoms.min() >= 0
        assert pmf.atoms.sum() + pmf.infinite == pytest.approx(1, rel=1e-12)
        # All of Q, but for what has no loss on the grid.
        assert pmf.atoms @ np.exp(-pmf.losses) == pytest.approx(1, rel=1e-12)
        assert pmf.infinite + pmf.raised < 2.1 * math.exp(LOG_TAIL)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_rounding_costs_the_square_of_the_interval(mechanism):
    for pair in _pairs(mechanism):
        growths = []
        for interval in (0.04, 0.01):
            pmf = round_losses(pair, interval, LOG_TAIL)
            growth = []
            for epsilon in np.linspace(-1, 2, 601) + 0.0007:
                p, q = pair.cells(np.array([epsilon]))
                growth.append(_delta(pmf, epsilon) - (p[1] - math.exp(epsilon) * q[1]))
            assert min(growth) > -1e-12
            growths.append(max(growth))
        # An atom has its kink spread over a cell; a density over its square.
        atoms = isinstance(mechanism, (PureEpsilon, RandomizedResponse, SampledLaplace))
        atoms = atoms or isinstance(mechanism, FixedSizeGaussian)
        assert 0 < growths[1] < growths[0] / (1.8 if atoms else 5)


def test_a_hand_computed_cell():
    # Losses +-0.25 on a grid of 0.5, with P = (e^0.25, 1) / (1 + e^0.25). The atom at 0.25 becomes
    # b at 0.5 and a at 0 with a + b = P and a + b e^-0.5 = P e^-0.25.
    (pair,) = _pairs(PureEpsilon(0.25))
    pmf = round_losses(pair, 0.5, LOG_TAIL)
    p = math.exp(0.25) / (1 + math.exp(0.25))
    up = p * (1 - math.exp(-0.25)) / (1 - math.exp(-0.5))
    low_up = (1 - p) * (1 - math.exp(-0.25)) / (1 - math.exp(-0.5))
    found = dict(zip(pmf.losses.tolist(), pmf.atoms.tolist(), strict=True))
    assert found[0.5] == pytest.approx(up, rel=1e-12)
    assert found[0.0] == pytest.approx(p - up + low_up, rel=1e-12)
    assert found[-0.5] == pytest.approx(1 - p - low_up, rel=1e-12)


def _convolved(pmfs):
    first, atoms = 0, np.ones(1)
    for pmf in pmfs:
        first, atoms = first + pmf.first, np.convolve(atoms, pmf.atoms)
    return first, atoms


@pytest.mark.parametrize("tilt", [0.3, 2.0, 6.0])
def test_sum_equals_convolutions(tilt):
    pairs = [_pairs(SampledGaussian(0.05, 1.0))[0], _pairs(PureEpsilon(0.3))[0]]
    one, other = (round_losses(pair, 0.05, LOG_TAIL) for pair in pairs)
    steps = [(one, 3), (other, 5)]
    total = add_losses(steps, make_window(steps, tilt, -40.0))
    first, atoms = _convolved([one] * 3 + [other] * 5)
    index = total.first + np.arange(len(total.atoms)) - first
    inside = (index >= 0) & (index < len(atoms))
    expected = np.zeros(len(total.atoms))
    expected[inside] = atoms[index[inside]]
    x = (total.first + np.arange(len(total.atoms))) * total.interval
    scale = np.exp(tilt * x - total.log_scale)
    difference = np.abs(total.atoms - expected * scale)
    assert difference.sum() <= total.wrapped + 1e-12
    assert np.linalg.norm(difference) <= total.transformed + total.wrapped
    assert total.wrapped < 1e-7
    assert total.log_scale == pytest.approx(3 * tilted(one, tilt)[0] + 5 * tilted(other, tilt)[0])


def test_what_wraps_around_is_bounded():
    # A window that is too small: what is wrong in it, and what is lost above, is as announced.
    (pmf,) = (round_losses(_pairs(SampledGaussian(1.0, 1.0))[0], 0.02, LOG_TAIL),)
    steps, tilt = [(pmf, 2)], 1.0
    wide = add_losses(steps, make_window(steps, tilt, -40.0))
    x = (wide.first + np.arange(len(wide.atoms))) * 0.02
    for low, high in ((-1.0, 6.0), (0.0, 8.0), (-4.0, 4.5)):
        small = add_losses(steps, Window(low, high, tilt, 0.0, 3.0))
        start = small.first - wide.first
        part = wide.atoms[start : start + len(small.atoms)]
        wrong = np.abs(small.atoms - part).sum()
        assert 0 < wrong <= small.wrapped * (1 + 1e-9)
        end = (small.first + len(small.atoms)) * 0.02
        probabilities = wide.atoms * np.exp(wide.log_scale - tilt * x)
        assert probabilities[x >= end].sum() <= small.lost * (1 + 1e-9)


def test_bounds_do_not_depend_on_the_tilt():
    pmf = round_losses(_pairs(SampledGaussian(0.02, 1.0))[0], 0.002, LOG_TAIL)
    deltas = []
    for tilt in (3.0, 4.0, 5.0):
        steps = [(pmf, 400)]
        bounds = DeltaBounds(add_losses(steps, make_window(steps, tilt, -40.0)))
        deltas.append(bounds.upper_delta(1.5))
    assert deltas[0] > 1e-8
    np.testing.assert_allclose(deltas, deltas[0], rtol=1e-6)


def test_large_losses_count_as_infinite():
    (pair,) = _pairs(SampledGaussian(1.0, 0.02))  # Losses of mean 1250, deviation 50.
    pmf = round_losses(pair, 0.5, LOG_TAIL)
    assert pmf.infinite == pytest.approx(1)
    assert _delta(pmf, 100.0) == pytest.approx(1)


@pytest.mark.parametrize(("z", "interval"), [(0.8, 1e-3), (0.8, 0.05), (5.0, 1e-3), (20.0, 1e-4)])
def test_what_rounding_moves_between_atoms_is_bounded(z, interval):
    """Against cells of forty digits: the smaller the cells, the more their differences cancel, and
    far out the rounding of the quantiles counts more than that of the probabilities.
    """
    (pair, *_) = _pairs(SampledGaussian(1.0, z))
    pmf = round_losses(pair, interval, LOG_TAIL)
    bounded = []
    for j in range(1, len(pmf.atoms) - 1, len(pmf.atoms) // 100):
        with mpmath.workdps(40):
            ups = []
            for low in (pmf.first + j - 1, pmf.first + j):
                h = mpmath.mpf(interval)
                e = low * h
                p, q = (
                    mpmath.ncdf((e + h) * z + s) - mpmath.ncdf(e * z + s)
                    for s in (-0.5 / mpmath.mpf(z), 0.5 / mpmath.mpf(z))
                )
                ups.append((p - mpmath.exp(e) * q) / -mpmath.expm1(-h))
            error = abs(float(pmf.atoms[j] - (ups[0] + p - ups[1])))
        bounded.append(error <= pmf.roundoff[j - 1] + pmf.roundoff[j])
    assert all(bounded)
    # Which is not much: a few roundings of a probability, in the parts of a cell.
    assert 0 <= pmf.roundoff.min() and pmf.roundoff.max() < 2e-15 / interval


def _moved(pmf):
    """Returns the losses with as much moved from every atom to the next as their bound allows."""
    atoms = pmf.atoms - pmf.roundoff
    atoms[1:] += pmf.roundoff[:-1]
    return pmf._replace(atoms=atoms, roundoff=np.zeros_like(atoms))


@pytest.mark.parametrize("tilt", [0.3, 2.0])
def test_bounds_of_a_sum_hold_whatever_rounding_has_moved(tilt):
    pairs = [_pairs(SampledGaussian(0.05, 1.0))[0], _pairs(PureEpsilon(0.3))[0]]
    rounded = [round_losses(pair, 0.05, LOG_TAIL) for pair in pairs]
    # As if cells had lost most of their digits.
    rounded = [pmf._replace(roundoff=1e-3 * pmf.atoms) for pmf in rounded]
    steps = [(rounded[0], 3), (rounded[1], 5)]
    others = [(_moved(pmf), count) for pmf, count in steps]
    window = make_window(steps, tilt, -40.0)
    bounds, other = DeltaBounds(add_losses(steps, window)), DeltaBounds(add_losses(others, window))
    for epsilon in (0.2, 1.0, 1.6):
        delta = other.upper_delta(epsilon)
        assert other.upper_delta(epsilon) > DeltaBounds(
            add_losses([(pmf._replace(roundoff=0 * pmf.atoms), n) for pmf, n in steps], window)
        ).upper_delta(epsilon) * (1 + 1e-5)
        assert delta <= bounds.upper_delta(epsilon) < 2 * delta
