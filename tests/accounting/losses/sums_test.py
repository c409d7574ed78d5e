"""tfdp.accounting.losses.sums: bounds of many steps of several kinds hold what is known exactly."""

import math

import numpy as np
import pytest

from tfdp.accounting.analytic_gaussian import gaussian_delta
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.losses.sums import bound_delta
from tfdp.accounting.mechanisms import SampledGaussian


def _pair(z):
    (pair,) = PAIRS[SampledGaussian](SampledGaussian(1.0, z))
    return pair


@pytest.mark.parametrize("steps", [[(10.0, 100)], [(10.0, 40), (20.0, 80), (5.0, 3)]])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_gaussians_of_several_sizes_lie_between_the_bounds(steps, epsilon):
    # Gaussians that see everything are together one, with mu^2 the sum of 1 / z^2.
    mu = math.sqrt(sum(count / z / z for z, count in steps))
    exact = gaussian_delta(mu, epsilon)
    (bounds,) = bound_delta([[(_pair(z), n) for z, n in steps]], None, 1e-3, exact, epsilon)
    upper = bounds.upper_delta(epsilon)
    assert exact <= upper <= exact * 1.01
    # One step of the first kind less is told apart.
    (z, count), *others = steps
    fewer = [(z, count - 1), *others]
    (less,) = bound_delta([[(_pair(z), n) for z, n in fewer]], None, 1e-3, exact, epsilon)
    assert less.upper_delta(epsilon) < exact


def test_no_grid_shows_more_than_divergences_that_show_no_loss():
    # Those of large groups of small samples may be nothing on the grid that they come from.
    assert bound_delta([[(_pair(10.0), 1)]], np.zeros_like, 1e-3, 1e-5) == []
