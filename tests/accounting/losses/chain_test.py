"""tfdp.accounting.losses.chain: two neighbours in a row, where the truth is known."""

import math

import numpy as np
import pytest

from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.losses.bounds import DeltaBounds
from tfdp.accounting.losses.chain import ChainBounds
from tfdp.accounting.losses.grid import add_losses, round_losses
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.losses.window import make_window
from tfdp.accounting.mechanisms import SampledGaussian


def _bounds(mechanism, count, interval, tilt, direction=0):
    pair = PAIRS[type(mechanism)](mechanism)[direction]
    steps = [(round_losses(pair, interval, -60.0), count)]
    return DeltaBounds(add_losses(steps, make_window(steps, tilt, -40.0)))


def test_chain_of_gaussians_is_their_group_privacy():
    # Two neighbours in a row: delta_1(x) + e^x delta_2(epsilon - x), smallest near the middle.
    bounds = _bounds(SampledGaussian(1.0, 8.0), 4, 1e-3, 12.0)
    chain = ChainBounds(bounds, bounds)
    epsilon = chain.upper_epsilon(1e-5)
    by_hand = min(
        gaussian_delta(0.25, x) + math.exp(x) * gaussian_delta(0.25, epsilon - x)
        for x in np.linspace(0.3 * epsilon, 0.7 * epsilon, 401)
    )
    assert by_hand == pytest.approx(1e-5, rel=0.02)
    assert chain.upper_delta(epsilon) == pytest.approx(1e-5, rel=1e-6)
    # The truth: two Gaussians that are 0.5 apart.
    assert gaussian_epsilon(0.5, 1e-5) < epsilon < 1.5 * gaussian_epsilon(0.5, 1e-5)
    assert chain.lower_epsilon(1e-5) <= gaussian_epsilon(0.25, 1e-5)
    assert chain.upper_epsilon(0.5) == 0
