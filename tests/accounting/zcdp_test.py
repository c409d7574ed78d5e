"""tfdp.accounting.ZCDPAccountant: rho by its definition, and the best conversion."""

import math

import numpy as np
import pytest

from tfdp.accounting import RDPAccountant, UnsupportedEventError, ZCDPAccountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.events import (
    ComposedEvent,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    UnknownSampling,
)

ADD, REPLACE, ZERO = NeighboringRelation


def test_rho_adds_up():
    accountant = ZCDPAccountant()
    assert accountant.rho == 0
    accountant.compose(GaussianSumEvent(1.0, 4.0), 16)  # 16 / (2 * 16)
    accountant.compose(PureEpsilonEvent(0.2), 5)  # 5 * 0.02
    accountant.compose(LaplaceSumEvent(1.0, 10.0))  # epsilon 0.1: 0.005
    accountant.compose(ExponentialMechanismEvent(0.4))  # 0.16 / 8
    assert accountant.rho == pytest.approx(0.5 + 0.1 + 0.005 + 0.02, rel=1e-12)
    assert accountant.compose(GaussianSumEvent(1.0, 0.0)).rho == math.inf


@pytest.mark.parametrize(
    ("event", "rho"),
    [
        (PureEpsilonEvent(0.3), 0.045),
        (PureEpsilonEvent(3.0), 4.5),
        (ExponentialMechanismEvent(0.3), 0.09 / 8),
        (ExponentialMechanismEvent(3.0), 9 / 8),
        (GaussianSumEvent(1.0, 2.0), 0.125),
    ],
    ids=repr,
)
def test_rho_bounds_the_divergence_of_every_order(event, rho):
    assert ZCDPAccountant().compose(event).rho == pytest.approx(rho, rel=1e-12)
    orders = np.array([1.001, 1.5, 2.0, 5.0, 20.0, 300.0])
    renyi = RDPAccountant().compose(event).get_rdp(orders)
    assert np.all(renyi <= rho * orders * (1 + 1e-9))
    # And not by much where orders and epsilon are small.
    if rho < 0.1:
        assert renyi[0] > 0.9 * rho


@pytest.mark.parametrize("rho_z", [0.5, 3.0, 30.0])
def test_gaussians_cost_what_renyi_divergences_say(rho_z):
    # rho a is the divergence of a Gaussian at every order, so nothing is lost but the search.
    zcdp, rdp = (
        make().compose(GaussianSumEvent(1.0, rho_z)) for make in (ZCDPAccountant, RDPAccountant)
    )
    for delta in (1e-2, 1e-5, 1e-12):
        assert zcdp.get_epsilon(delta) == pytest.approx(rdp.get_epsilon(delta), rel=1e-5)
        assert zcdp.get_epsilon(delta) >= gaussian_epsilon(1 / rho_z, delta) * (1 - 1e-9)


def test_never_above_the_published_conversion():
    # rho + 2 sqrt(rho log(1 / delta)): Bun and Steinke 2016, proposition 1.3.
    accountant = ZCDPAccountant().compose(GaussianSumEvent(1.0, 2.0), 3)
    rho = 3 / 8
    for delta in (1e-2, 1e-5, 1e-12):
        published = rho + 2 * math.sqrt(-rho * math.log(delta))
        assert 0.7 * published < accountant.get_epsilon(delta) < published


@pytest.mark.parametrize(
    ("sampling", "relation", "name"),
    [
        (PoissonSampling(0.1), ADD, "sampling_probability=0.1"),
        (PoissonSampling(0.1), REPLACE, "under REPLACE_ONE"),
        (FixedSizeSampling(5, 10), REPLACE, "5 of 10"),
        (FixedSizeSampling(5, 10), ADD, "sampling_probability=0.5"),
    ],
)
def test_sampled_gaussians_are_refused_by_name(sampling, relation, name):
    event = SampledEvent(sampling, GaussianSumEvent(1.0, 2.0), relation)
    with pytest.raises(UnsupportedEventError, match=f"ZCDPAccountant cannot price.*{name}"):
        ZCDPAccountant().compose(event)


def test_what_is_pure_on_its_sample_is_priced():
    event = SampledEvent(PoissonSampling(0.1), LaplaceSumEvent(1.0, 1.0))
    epsilon = math.log1p(0.1 * math.expm1(1.0))
    assert ZCDPAccountant().compose(event).rho == pytest.approx(epsilon**2 / 2)
    both = ComposedEvent((GaussianSumEvent(1.0, 2.0), PureEpsilonEvent(0.1)))
    unsampled = SampledEvent(UnknownSampling(), both, ZERO)
    assert ZCDPAccountant().compose(unsampled).rho == pytest.approx(0.125 + 0.005)


def test_rho_of_what_fails_is_infinite_and_epsilon_is_not():
    gaussian = ZCDPAccountant().compose(GaussianSumEvent(1.0, 2.0))
    for event in (DiscreteGaussianSumEvent(1.0, 2.0, 2**-31, 1000), EpsilonDeltaEvent(0.0, 1e-9)):
        accountant = ZCDPAccountant().compose(event)
        assert accountant.rho == math.inf
        assert accountant.get_epsilon(1e-5) < 1.001 * gaussian.get_epsilon(1e-5)
        assert accountant.get_delta(1.0) < 1.001 * gaussian.get_delta(1.0)
