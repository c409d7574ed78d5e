"""tfdp.accounting.analytic_gaussian: against 50 digits."""

import math

import mpmath
import pytest

from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon


def _delta(mu, epsilon, digits=50):
    with mpmath.workdps(digits):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        below = mpmath.ncdf(-epsilon / mu - mu / 2)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * below


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.3, 1.0, 5.0, 40.0, 300.0])
@pytest.mark.parametrize("delta", [0.5, 1e-2, 1e-5, 1e-12, 1e-100, 1e-290])
def test_equal_to_the_definition(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    exact = _delta(mu, epsilon)
    assert float(exact / delta) < 1 + 1e-8
    if epsilon > 0:
        assert float(exact / delta) == pytest.approx(1, rel=1e-8)
    else:
        assert float(exact) <= delta
    assert gaussian_delta(mu, epsilon) == pytest.approx(float(exact), rel=1e-8)


@pytest.mark.parametrize("mu", [1e-28, 1e-20, 1e-12, 1e-9, 1e-4])
@pytest.mark.parametrize("share", [0.01, 1.0, 3.0, 20.0])
def test_delta_of_a_tiny_mu_keeps_its_digits(mu, share):
    exact = float(_delta(mu, share * mu, digits=200))
    assert gaussian_delta(mu, share * mu) == pytest.approx(exact, rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("mu", [1e-150, 1e-8, 1e8, 1e150])
def test_extremes(mu):
    epsilon = gaussian_epsilon(mu, 1e-5)
    assert math.isfinite(epsilon)
    assert epsilon == (0 if mu < 1 else pytest.approx(mu * (mu / 2 + 4.265), rel=1e-3))
    assert gaussian_delta(mu, 0.0) == pytest.approx(math.erf(mu / math.sqrt(8)))
    assert gaussian_delta(mu, mu**2 + 100 * mu) == 0
