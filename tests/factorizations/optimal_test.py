"""tfdp.factorizations.optimal: gradients against differences, optima against grids."""

import numpy as np
import pytest
from scipy import optimize

from tfdp.factorizations import ToeplitzFactorization, banded_square_root, optimal_banded
from tfdp.factorizations.optimal import _log_loss


@pytest.mark.parametrize("period", [1, 3, 30])
@pytest.mark.parametrize("error", ["root_mean_squared", "max"])
def test_gradient_is_that_of_differences(period, error):
    n = 30
    weights = np.arange(n, 0, -1) / n if error == "root_mean_squared" else np.ones(n)
    point = np.array([0.6, 0.3, 0.25])
    numeric = optimize.approx_fprime(point, lambda p: _log_loss(p, n, period, weights)[0], 1e-7)
    np.testing.assert_allclose(_log_loss(point, n, period, weights)[1], numeric, rtol=1e-4)


@pytest.mark.parametrize("error", ["root_mean_squared", "max"])
def test_two_bands_are_the_best_of_a_grid(error):
    n = 20
    measure = {"root_mean_squared": "root_mean_squared_error", "max": "max_error"}[error]
    best = getattr(optimal_banded(n, 2, error=error), measure)(n)
    grid = [
        getattr(ToeplitzFactorization((1.0, p)), measure)(n) for p in np.arange(0.005, 1, 0.005)
    ]
    assert best <= min(grid) * (1 + 1e-12)
    assert best == pytest.approx(min(grid), rel=1e-4)


@pytest.mark.parametrize(("bands", "period"), [(2, None), (8, None), (8, 16), (8, 4), (8, 1)])
def test_optimum_is_no_worse_than_the_square_root_and_keeps_its_gradient_flat(bands, period):
    n = 128
    best = optimal_banded(n, bands, period)
    root = banded_square_root(bands)
    assert best.root_mean_squared_error(n, period) <= root.root_mean_squared_error(n, period)
    assert best.bands <= bands
    assert min(best.numerator) >= 0


def test_more_bands_are_no_worse():
    errors = [optimal_banded(256, b).root_mean_squared_error(256) for b in (1, 2, 4, 8, 16, 32)]
    assert errors == sorted(errors, reverse=True)


def test_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="bands must be at most num_steps"):
        optimal_banded(4, 5)
    with pytest.raises(ValueError, match="error must be one of"):
        optimal_banded(8, 2, error="mean")
