"""tfdp.accounting.mechanisms: kept apart by type, and each below what is charged in its place."""

import itertools
import math

import numpy as np
import pytest
from scipy import linalg

from tfdp.accounting.mechanisms import (
    DEARER,
    AllocatedGaussian,
    BestOfPoissonRuns,
    BestOfPureRuns,
    BestOfRuns,
    BinnedGaussian,
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    Mechanism,
    NoPrivacy,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    SeparatedGaussian,
    SkellamNoise,
    TruncatedGaussian,
    WorstPart,
    amplified_epsilon,
)
from tfdp.accounting.rdp import RDPAccountant, renyi_curve
from tfdp.factorizations import banded_square_root, one_step_back


def test_equal_numbers_of_different_types_are_different():
    assert SampledGaussian(0.1, 2.0) != SampledLaplace(0.1, 2.0)
    assert len({BoundedRange(1.0), PureEpsilon(1.0), PureEpsilon(1.0)}) == 2


def test_every_mechanism_has_a_renyi_divergence():
    # Of a mixture over the steps that a unit is in nobody has a closed form.
    without = {BinnedGaussian, NoPrivacy, SeparatedGaussian}
    assert set(RDPAccountant.prices) | without == set(Mechanism.__subclasses__())


def test_everything_comes_down_to_gaussians_and_pure_epsilon():
    # Of the best of many runs, and of integer noise, only divergences are known.
    known_by_divergences = {BestOfRuns, BestOfPoissonRuns, Concentrated, SkellamNoise}
    # For a worst part others are charged what is written in it, all together.
    ends = {SampledGaussian, PureEpsilon, WorstPart} | known_by_divergences
    assert set(DEARER) == set(RDPAccountant.prices) - ends | {BinnedGaussian, SeparatedGaussian}


MECHANISMS = {
    "truncated_add": TruncatedGaussian(0.1, 0.2, 1.5, False),
    "truncated_zero": TruncatedGaussian(0.1, 0.2, 1.5, True),
    "allocated": AllocatedGaussian(10, 1.5),
    "twice_allocated": RemoveThenAdd(AllocatedGaussian(10, 3.0)),
    "best_of_pure_runs": BestOfPureRuns(BestOfRuns((((PureEpsilon(0.2), 2),),), 1.0, 0.1), 0.4),
    "bounded_range": BoundedRange(0.7),
    "fixed_size": FixedSizeGaussian(10, 100, 1.5),
    "response": RandomizedResponse(0.3, 5, False),
    "response_uniform": RandomizedResponse(0.3, 5, True),
    "response_mostly_random": RandomizedResponse(0.95, 2, True),
    "twice": RemoveThenAdd(SampledGaussian(0.1, 3.0)),
    "twice_laplace": RemoveThenAdd(SampledLaplace(0.1, 3.0)),
    "laplace": SampledLaplace(0.2, 0.8),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_dearer_mechanism_costs_at_least_as_much(name):
    mechanism = MECHANISMS[name]
    dearer = DEARER[type(mechanism)](mechanism)
    assert type(dearer) in (SampledGaussian, PureEpsilon)
    # Where the group's bound is looser than what is known of a replacement, which is at orders far
    # from the best, the comparison is of two upper bounds.
    orders = np.array([1.05, 1.5, 2.0, 4.0] if "twice" in name else [1.05, 2.0, 9.5, 100.0])
    cheap, dear = (renyi_curve([(m, 1)])(orders) for m in (mechanism, dearer))
    assert np.all(cheap <= dear * (1 + 1e-12))


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in MECHANISMS
        if "twice" not in n and "epsilon" in dir(DEARER[type(MECHANISMS[n])](MECHANISMS[n]))
    ],
)
def test_pure_epsilon_of_a_mechanism_is_its_largest_loss(name):
    mechanism = MECHANISMS[name]
    largest = renyi_curve([(mechanism, 1)])(np.array([1e5]))[0]
    assert DEARER[type(mechanism)](mechanism).epsilon == pytest.approx(largest, rel=1e-3)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 10])
def test_a_separated_unit_moves_most_from_the_first_step_on(n):
    mechanism = SeparatedGaussian(0.3, 3, n, ((0.5, 0.2), (0.4, 0.3, 0.1)))
    matrices = [
        linalg.toeplitz([*column, *[0] * n][:n], np.zeros(n)) for column in mechanism.columns
    ]
    every = itertools.product([0, 1], repeat=n)
    apart = [s for s in every if all(sum(s[i : i + 3]) <= 1 for i in range(n))]
    most = max(math.hypot(*(np.linalg.norm(c @ s) for c in matrices)) for s in apart)
    assert most <= mechanism.sensitivity <= most * (1 + 1e-9)
    assert mechanism.participations == max(map(sum, apart))
    assert DEARER[SeparatedGaussian](mechanism) == SampledGaussian(1.0, 1 / mechanism.sensitivity)


def test_a_unit_in_a_bin_moves_most_in_the_first_one():
    factors = ((one_step_back(0.5), 2.0), (banded_square_root(2), 3.0))
    mechanism = BinnedGaussian(4, 11, factors)
    moved = [math.hypot(*(c.sensitivity(11 - j, 4) / z for c, z in factors)) for j in range(4)]
    assert max(moved) <= mechanism.sensitivity <= max(moved) * (1 + 1e-9)
    assert mechanism.bands == 11 and BinnedGaussian(4, 11, factors[1:]).bands == 2
    assert DEARER[BinnedGaussian](mechanism) == SampledGaussian(1.0, 1 / mechanism.sensitivity)
    told = BinnedGaussian(4, 11, factors[1:])
    assert DEARER[BinnedGaussian](told) == AllocatedGaussian(2, 1 / told.sensitivity)


def test_amplified_epsilon():
    assert amplified_epsilon(1.0, 1.0) == pytest.approx(1.0, rel=1e-15)
    assert amplified_epsilon(1.0, 0.01) == pytest.approx(math.log(1 + 0.01 * (math.e - 1)))
    assert amplified_epsilon(1e-9, 0.01) == pytest.approx(1e-11, rel=1e-8)
    below, above = amplified_epsilon(699.9, 0.01), amplified_epsilon(700.1, 0.01)
    assert above - below == pytest.approx(0.2, rel=1e-9)


def test_amplification_of_a_huge_epsilon():
    # log(1 + q (e^epsilon - 1)) with q = 1e-308: log(1 + e^710 / 1e308) = log(1 + 2.2338).
    assert amplified_epsilon(710.0, 1e-308) == pytest.approx(1.17367, rel=1e-4)
    assert amplified_epsilon(710.0, 1e-320) > 0
    assert amplified_epsilon(1e5, 1e-3) == pytest.approx(1e5 + math.log(1e-3))


def test_a_unit_of_a_sample_that_is_replaced_costs_both_ways():
    for q, scale in ((0.1, 3.0), (0.5, 0.1)):
        once = amplified_epsilon(1 / scale, q)
        twice = RemoveThenAdd(SampledLaplace(q, scale))
        assert DEARER[RemoveThenAdd](twice) == PureEpsilon(pytest.approx(2 * once))
