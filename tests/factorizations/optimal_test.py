"""tfdp.factorizations.optimal: gradients against differences, optima against grids."""

import numpy as np
import pytest
from scipy import optimize

from tfdp.factorizations import (
    ToeplitzFactorization,
    banded_square_root,
    one_step_back,
    optimal_banded,
    optimal_buffered,
    optimal_one_step_back,
)
from tfdp.factorizations.optimal import _log_loss, _log_loss_of_buffers


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


@pytest.mark.parametrize("period", [1, 3, 30])
@pytest.mark.parametrize("error", ["root_mean_squared", "max"])
def test_gradient_of_buffers_is_that_of_differences(period, error):
    n = 30
    weights = np.arange(n, 0, -1) / n if error == "root_mean_squared" else np.ones(n)
    point = np.array([3.0, 1.0, 0.5, 2.0])
    loss, gradient = _log_loss_of_buffers(point, n, period, weights)
    numeric = optimize.approx_fprime(
        point, lambda f: _log_loss_of_buffers(f, n, period, weights)[0], 1e-7
    )
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-7)
    assert np.isfinite(loss)


def test_one_buffer_is_the_best_of_a_grid():
    n = 40
    best = optimal_buffered(n, 1).root_mean_squared_error(n)
    grid = [
        ToeplitzFactorization((1.0, -b), (1.0, -a)).root_mean_squared_error(n)
        for a in np.arange(0.5, 1, 0.01)
        for b in np.arange(0.01, a, 0.01)
    ]
    assert best <= min(grid) * (1 + 1e-12)
    assert best == pytest.approx(min(grid), rel=1e-3)


@pytest.mark.parametrize("error", ["root_mean_squared", "max"])
@pytest.mark.parametrize(("n", "period"), [(1024, None), (200, 16), (200, 1), (20, 10), (1, None)])
def test_one_step_back_is_the_best_of_a_grid(n, period, error):
    measure = {"root_mean_squared": "root_mean_squared_error", "max": "max_error"}[error]
    best = getattr(optimal_one_step_back(n, period, error=error), measure)(n, period)
    grid = [getattr(one_step_back(c), measure)(n, period) for c in np.arange(0, 1, 0.002)]
    assert best <= min(grid) * (1 + 1e-12)
    assert best == pytest.approx(min(grid), rel=1e-3)


def test_one_step_back_of_many_steps_takes_back_what_its_closed_form_says():
    # With u = 1 - lambda and many steps, the squared error is about (1 + u^2 n / 2) / (2 u - u^2).
    n = 4096
    found = 1 + optimal_one_step_back(n).denominator[1]
    u = np.linspace(1e-3, 1, 10_000)
    expected = u[np.argmin((1 + u * u * (n - 1) / 2) / (2 * u - u * u))]
    assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("period", [None, 16, 1])
def test_buffers_give_columns_without_signs_and_more_of_them_are_no_worse(period):
    n = 128
    found = [optimal_buffered(n, buffers, period) for buffers in (1, 2, 3, 4)]
    errors = [each.root_mean_squared_error(n, period) for each in found]
    assert errors == sorted(errors, reverse=True)
    for buffers, each in enumerate(found, start=1):
        assert each.memory(n) <= buffers and each.bands is None
        assert each.column(n).min() >= 0
    # All bands of the square root are a little better at most.
    assert errors[-1] < 1.02 * banded_square_root(n).root_mean_squared_error(n, period)


def test_refuses_buffers_that_cannot_be():
    for buffers in (0, 11):
        with pytest.raises(ValueError, match="buffers"):
            optimal_buffered(8, buffers)
    with pytest.raises(TypeError, match="buffers"):
        optimal_buffered(8, 2.0)
    with pytest.raises(ValueError, match="error must be one of"):
        optimal_buffered(8, 2, error="mean")
    with pytest.raises(ValueError, match="error must be one of"):
        optimal_one_step_back(8, error="mean")


# As above, by jax_privacy 2.0.0, buffered_toeplitz.optimize(n=n, min_sep=n, max_participations=1,
# min_buffers=d, max_buffers=d, error="mean"), in float64.
BUFFERS_OF_JAX_PRIVACY = {
    (1024, 1): (3.456791719319954, 3.9712759293170294),
    (1024, 2): (3.083987875871166, 3.408255700572841),
    (1024, 3): (3.0586711152919617, 3.3569910167948467),
    (1024, 4): (3.057366694870923, 3.3525624496029556),
    (4096, 1): (4.319859068006393, 4.968796928224317),
    (4096, 2): (3.580116250940918, 3.936034363780055),
    (4096, 3): (3.5060446752895555, 3.8138071725192173),
    (4096, 4): (3.4988462427166165, 3.797466755926988),
}


@pytest.mark.parametrize(("n", "buffers"), BUFFERS_OF_JAX_PRIVACY)
def test_errors_of_buffers_are_no_larger_than_those_of_jax_privacy(n, buffers):
    mean, last = BUFFERS_OF_JAX_PRIVACY[n, buffers]
    best = optimal_buffered(n, buffers)
    assert best.root_mean_squared_error(n) <= mean * (1 + 1e-6)
    assert best.max_error(n) == pytest.approx(last, rel=1e-5)
