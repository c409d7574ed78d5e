"""tfdp.accounting.losses.proven: what PRVAccountant says, without an accountant."""

import math

import pytest

from tfdp.accounting import PRVAccountant
from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.losses.proven import proven_delta, proven_epsilon
from tfdp.accounting.mechanisms import SampledGaussian
from tfdp.accounting.rdp import renyi_curve
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent


@pytest.mark.parametrize("delta", [1e-5, 1e-12])
def test_gaussians_are_a_little_dearer_than_in_closed_form(delta):
    # Two kinds, which are one of mu^2 = 9 / 16 + 4 / 25.
    terms = [(SampledGaussian(1.0, 4.0), 9), (SampledGaussian(1.0, 5.0), 4)]
    renyi, mu = renyi_curve(terms), math.sqrt(9 / 16 + 4 / 25)
    exact = gaussian_epsilon(mu, delta)
    assert exact <= proven_epsilon(terms, renyi, delta) <= exact * 1.001
    assert (
        gaussian_delta(mu, 2.0) <= proven_delta(terms, renyi, 2.0) <= 1.01 * gaussian_delta(mu, 2)
    )


def test_samples_cost_what_the_accountant_says():
    terms = [(SampledGaussian(0.01, 1.0), 1000), (SampledGaussian(0.02, 2.0), 10)]
    accountant = PRVAccountant()
    for mechanism, count in terms:
        sampling = PoissonSampling(mechanism.sampling_probability)
        event = GaussianSumEvent(1.0, mechanism.noise_multiplier)
        accountant.compose(SampledEvent(sampling, event), count)
    renyi = renyi_curve(terms)
    found = proven_epsilon(terms, renyi, 1e-10)
    assert found == pytest.approx(accountant.get_epsilon(1e-10), rel=1e-9)
    assert proven_delta(terms, renyi, 1.5) == pytest.approx(accountant.get_delta(1.5), rel=1e-9)


def test_no_grid_is_no_bound():
    huge = [(SampledGaussian(1.0, 0.01), 1)]
    assert proven_epsilon(huge, renyi_curve(huge), 1e-5) == math.inf
    assert proven_delta(huge, renyi_curve(huge), 1000.0) == 1.0
