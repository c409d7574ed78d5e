"""tfdp.accounting.losses.window: a window is found by the divergences of the losses."""

import numpy as np

from tfdp.accounting.losses.grid import round_losses
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.losses.window import rounded_curve
from tfdp.accounting.mechanisms import (
    SampledGaussian,
)


def _pairs(mechanism):
    return PAIRS[type(mechanism)](mechanism)


def test_rounded_curve_is_the_renyi_divergence():
    pairs = _pairs(SampledGaussian(1.0, 2.0))
    curve = rounded_curve([[(round_losses(pair, 1e-3, -100.0), 7)] for pair in pairs])
    # a / (2 z^2), seven times.
    np.testing.assert_allclose(curve(np.array([1.5, 4.0])), [7 * 1.5 / 8, 7 * 4 / 8], rtol=1e-5)
