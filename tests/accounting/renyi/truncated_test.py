"""Gaussian sums on truncated Poisson samples: never below what small data sets show."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import PRVAccountant, make_accountant
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.mechanisms import FixedSizeGaussian, SampledGaussian, TruncatedGaussian
from tfdp.accounting.normal_form import normal_form
from tfdp.accounting.rdp import renyi_curve
from tfdp.accounting.renyi.truncated import truncated_gaussian_curve
from tfdp.accounting.totals import Totals
from tfdp.events import (
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    TruncatedPoissonSampling,
)

ADD, _, ZERO = NeighboringRelation
Q, Z, N = 0.4, 0.8, 4
X = np.linspace(-9, 9, 6001)


def _density(values, most, places):
    """Density of the noised sum: every sample, every kept part of it, with its probability.

    `places` are units of which the last, where `values` has it not, contributes nothing.
    """
    found = np.zeros_like(X)
    for size in range(places + 1):
        for sample in itertools.combinations(range(places), size):
            weight = Q**size * (1 - Q) ** (places - size)
            parts = list(itertools.combinations(sample, min(size, most)))
            for part in parts:
                total = sum(values[i] for i in part)
                found += weight / len(parts) * stats.norm.pdf(X, total, Z)
    return found


def _data(relation):
    """Yields (values of one data set, values of its neighbour), for one coordinate in [-1, 1]."""
    for others in itertools.product((-1.0, 1.0), repeat=N - 1):
        yield (*others, 1.0), (others if relation is ADD else (*others, 0.0))


def _delta(p, q, epsilon):
    return float(np.sum(np.maximum(0.0, p - math.exp(epsilon) * q)) * (X[1] - X[0]))


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("relation", [ADD, ZERO], ids=["add", "zero"])
def test_all_small_data_sets_are_covered_and_poisson_alone_would_not(relation, most):
    # Under ADD the ledger says the number of units of the smaller data set, or of the larger one.
    population = N - 1 if relation is ADD else N
    step = SampledEvent(
        TruncatedPoissonSampling(Q, population, most), GaussianSumEvent(1.0, Z), relation
    )
    poisson = SampledEvent(PoissonSampling(Q), GaussianSumEvent(1.0, Z), relation)
    worst = {}
    for one, other in _data(relation):
        p, q = _density(one, most, len(one)), _density(other, most, len(other))
        for epsilon in (0.0, 1.5, 3.5):
            found = max(_delta(p, q, epsilon), _delta(q, p, epsilon))
            worst[epsilon] = max(worst.get(epsilon, 0.0), found)
    for epsilon, truth in worst.items():
        for name in ("prv", "pld"):
            assert make_accountant(name).compose(step).get_delta(epsilon) >= truth * (1 - 1e-6)
    if most == 1:
        below = make_accountant("prv").compose(poisson).get_delta(3.5)
        assert below < 0.7 * worst[3.5]


def test_a_rare_overflow_costs_hardly_anything():
    # 10 expected, 22 kept: the delta of a failure in each of 1000 steps would be 0.04.
    step = SampledEvent(TruncatedPoissonSampling(0.01, 1000, 22), GaussianSumEvent(1.0, 2.0), ZERO)
    poisson = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 2.0), ZERO)
    for name in ("prv", "pld"):
        truncated, whole = (
            make_accountant(name).compose(event, 1000).get_epsilon(1e-5)
            for event in (step, poisson)
        )
        assert whole < truncated < 1.02 * whole
    # Divergences alone cannot say so: there such samples are lost.
    assert make_accountant("rdp").compose(step, 1000).get_epsilon(1e-5) == math.inf


def test_ends_are_the_pairs_themselves():
    orders = np.array([1.01, 1.5, 2.0, 8.0, 64.0])
    for keeps_places, crowded in (
        (False, SampledGaussian(0.1, 0.75)),
        (True, FixedSizeGaussian(1, 10, 0.75)),
    ):
        for tau, end in ((1.0, crowded), (1e-300, SampledGaussian(0.1, 1.5))):
            mixed = TruncatedGaussian(0.1, tau, 1.5, keeps_places)
            found = truncated_gaussian_curve([mixed], np.array([1.0]))(orders[:4])
            assert found == pytest.approx(renyi_curve([(end, 1)])(orders[:4]), rel=1e-9)
    half = truncated_gaussian_curve([TruncatedGaussian(0.1, 0.5, 1.5, True)], np.array([3.0]))
    assert np.all(np.diff(half(orders)) > 0)


@pytest.mark.parametrize(("z", "order"), [(0.5, 24.0), (1.5, 24.0), (1.5, 1.5)])
def test_moments_are_mixed(z, order):
    usual, crowded = (
        float(renyi_curve([(mechanism, 1)])(np.array([order]))[0])
        for mechanism in (SampledGaussian(0.1, z), SampledGaussian(0.1, z / 2))
    )
    # Where the first has it, both parts of the moment are of one size; with z = 0.5 both are huge.
    for tau in (math.exp((order - 1) * (usual - crowded)), 1e-3, 0.3):
        mixed = truncated_gaussian_curve([TruncatedGaussian(0.1, tau, z, False)], np.array([1.0]))
        with mpmath.workdps(30):
            parts = (mpmath.exp((order - 1) * rdp) for rdp in (usual, crowded))
            moment = sum(w * part for w, part in zip((1 - tau, tau), parts, strict=True))
            expected = float(mpmath.log(moment) / (order - 1))
        assert mixed(np.array([order])) == pytest.approx([expected], rel=1e-9)


@pytest.mark.parametrize("keeps_places", [False, True])
def test_pairs_are_probabilities_and_bounds_hold(keeps_places):
    for pair in PAIRS[TruncatedGaussian](TruncatedGaussian(0.1, 1e-3, 0.7, keeps_places)):
        for cells in pair.cells(np.linspace(-3, 30, 100)):
            assert cells.sum() == pytest.approx(1, abs=1e-12)
        for log_tail in (-3.0, -20.0):
            for side, (low, high) in enumerate(pair.bounds(log_tail)):
                cells = pair.cells(np.array([low, high]))[side]
                assert cells[0] <= math.exp(log_tail) and cells[2] <= math.exp(log_tail)


def test_groups_are_priced_by_distributions():
    step = SampledEvent(TruncatedPoissonSampling(0.1, 100, 20), GaussianSumEvent(1.0, 4.0), ZERO)
    one, two = (PRVAccountant(group_size=k).compose(step, 5).get_epsilon(1e-5) for k in (1, 2))
    assert one < two < math.inf


def test_both_prices_are_of_one_event():
    step = SampledEvent(TruncatedPoissonSampling(0.1, 100, 20), GaussianSumEvent(1.0, 4.0), ZERO)
    form = normal_form(step)
    assert form.failure_probability == 0 < form.otherwise.failure_probability
    assert form.otherwise.mechanisms == (SampledGaussian(0.1, 4.0),)
    totals = Totals()
    for _ in range(2):
        totals.add(step, 3)
    assert list(totals) == [(step, 6)]
