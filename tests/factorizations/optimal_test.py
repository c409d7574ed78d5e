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


# Root mean squared error and error of the last running sum, of sensitivity 1, by jax_privacy 2.0.0,
# toeplitz.optimize_banded_toeplitz(n=n, bands=bands): sqrt(sensitivity_squared(c, n)) times the
# square roots of mean and maximum of per_query_error(strategy_coef=c, n=n), in float64.
OF_JAX_PRIVACY = {
    (1024, 2): (16.108395115909353, 22.720798965932577),
    (1024, 4): (11.56329214007701, 16.228323686280717),
    (1024, 16): (6.342793360417922, 8.659091001529951),
    (1024, 64): (4.06591343954361, 5.218598283563761),
    (4096, 2): (32.081910340025274, 45.327584218763455),
    (4096, 4): (22.82173792908818, 32.17939349043451),
    (4096, 16): (11.883879179607288, 16.545114096032922),
    (4096, 64): (6.758934284229149, 9.087251726495149),
}


@pytest.mark.parametrize(("n", "bands"), OF_JAX_PRIVACY)
def test_errors_are_no_larger_than_those_of_jax_privacy(n, bands):
    mean, last = OF_JAX_PRIVACY[n, bands]
    best = optimal_banded(n, bands)
    assert best.root_mean_squared_error(n) <= mean * (1 + 1e-6)
    # Nor of the last sum, where that is what is optimized.
    assert optimal_banded(n, bands, error="max").max_error(n) <= last * (1 + 1e-6)
    # Both optimize the same, and so the other error agrees as well.
    assert best.max_error(n) == pytest.approx(last, rel=1e-3)
