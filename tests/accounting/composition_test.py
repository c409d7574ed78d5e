"""tfdp.accounting.composition: by hand, and figure 2 of Abadi et al. 2016."""

import math

import numpy as np
import pytest

from tfdp.accounting import BasicComposition, PRVAccountant, StrongComposition
from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.composition import _sampled_gaussian
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.mechanisms import SampledGaussian
from tfdp.events import (
    FixedSizeSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
)

STEP = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 4.0))


@pytest.mark.parametrize(("q", "z", "delta"), [(1.0, 2.0, 1e-5), (0.1, 0.7, 1e-7), (1e-3, 3, 1e-6)])
def test_price_of_a_step_is_exact_when_a_unit_is_removed(q, z, delta):
    epsilon = _sampled_gaussian(SampledGaussian(q, z), delta)
    deltas = []
    for pair in PAIRS[SampledGaussian](SampledGaussian(q, z)):
        p, r = pair.cells(np.array([epsilon]))
        deltas.append(p[1] - math.exp(epsilon) * r[1])
    assert deltas[0] == pytest.approx(delta, rel=1e-6)
    assert deltas[-1] <= deltas[0]


def test_basic_composition_adds_epsilons_and_deltas():
    accountant = BasicComposition().compose(PureEpsilonEvent(0.2), 5)
    assert accountant.get_epsilon(1e-9) == pytest.approx(1.0)
    accountant.compose(GaussianSumEvent(1.0, 3.0), 4)
    expected = 1.0 + 4 * gaussian_epsilon(1 / 3, 1e-5 / 4)
    assert accountant.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-12)
    # At epsilon 3 the Gaussians have 0.5 each.
    assert accountant.get_delta(3.0) == pytest.approx(4 * gaussian_delta(1 / 3, 0.5), rel=1e-6)
    assert accountant.get_delta(0.9) == 1
    assert BasicComposition().compose(PureEpsilonEvent(0.2), 5).get_delta(1.01) == 0


def test_strong_composition_of_pure_steps_is_the_theorem():
    accountant = StrongComposition().compose(PureEpsilonEvent(0.1), 100)
    accountant.compose(PureEpsilonEvent(0.05), 20)
    squares = 100 * 0.01 + 20 * 0.0025
    mean = 100 * 0.1 * math.tanh(0.05) + 20 * 0.05 * math.tanh(0.025)
    expected = mean + math.sqrt(2 * squares * math.log(1e5))
    assert accountant.get_epsilon(1e-5) == pytest.approx(expected, rel=1e-12)
    # Never more than the sum.
    assert StrongComposition().compose(PureEpsilonEvent(0.1), 3).get_epsilon(1e-5) == 0.1 * 3


def test_share_of_delta_is_chosen_well():
    found = StrongComposition().compose(STEP, 10_000).get_epsilon(1e-5)
    tried = []
    for share in np.linspace(0.01, 0.99, 99):
        # delta = 1 - (1 - slack) (1 - step)^T, with (1 - step)^T = (1 - delta)^share.
        step = -math.expm1(share * math.log1p(-1e-5) / 10_000)
        slack = -math.expm1((1 - share) * math.log1p(-1e-5))
        e = math.log1p(0.01 * math.expm1(gaussian_epsilon(0.25, step / 0.01)))
        width = math.sqrt(2 * 10_000 * math.log(1 / slack))
        tried.append(10_000 * e * math.tanh(e / 2) + e * width)
    assert found <= min(tried) * (1 + 1e-9)
    assert found == pytest.approx(min(tried), rel=1e-3)


def test_figure_2_and_what_is_wrong_with_it():
    # 9.34 after 100 epochs: Dwork's theorem, epsilon sqrt(2 T log(1 / delta')) + T epsilon^2, for
    # steps of (q epsilon, q delta), with sqrt(2 log(1.25 / delta)) / sigma for epsilon.
    steps, q, sigma, delta = 10_000, 0.01, 4.0, 1e-5
    step_delta = delta / 2 / (steps * q)
    epsilon = math.sqrt(2 * math.log(1.25 / step_delta)) / sigma
    strong = q * epsilon * math.sqrt(2 * steps * math.log(2 / delta)) + steps * (q * epsilon) ** 2
    assert round(strong, 2) == 9.34
    # But such a step is not (q epsilon, q delta)-private.
    pair = PAIRS[SampledGaussian](SampledGaussian(q, sigma))[0]
    p, r = pair.cells(np.array([q * epsilon]))
    assert p[1] - math.exp(q * epsilon) * r[1] > 200 * q * step_delta
    # With its right epsilon the theorem gives 14.18, in the better form of Kairouz et al.
    found = StrongComposition().compose(STEP, steps).get_epsilon(delta)
    assert round(found, 2) == 14.18
    assert strong < found < BasicComposition().compose(STEP, steps).get_epsilon(delta)


@pytest.mark.parametrize("steps", [1, 30, 3000])
@pytest.mark.parametrize("make", [BasicComposition, StrongComposition])
def test_never_below_the_truth(make, steps):
    for event in (STEP, GaussianSumEvent(1.0, 20.0), PureEpsilonEvent(0.02)):
        truth = PRVAccountant().compose(event, steps).get_epsilon_interval(1e-5)
        assert make().compose(event, steps).get_epsilon(1e-5) >= truth.lower


def test_fixed_size_samples_are_amplified():
    step = SampledEvent(
        FixedSizeSampling(1, 100), GaussianSumEvent(0.5, 4.0), NeighboringRelation.REPLACE_ONE
    )
    for make in (BasicComposition, StrongComposition):
        fixed = make().compose(step, 100).get_epsilon(1e-5)
        assert fixed == pytest.approx(make().compose(STEP, 100).get_epsilon(1e-5), rel=1e-9)
