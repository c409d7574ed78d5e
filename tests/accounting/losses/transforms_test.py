"""tfdp.accounting.losses.transforms: more than what is lost, and not far more."""

import math

import numpy as np
import pytest
from dp_accounting.pld import common
from scipy import signal

from tfdp.accounting.losses.transforms import of_one, of_power, of_product


def _binomial(count, q, length):
    """The probabilities of 0, 1, ... successes, by their ratios, in long doubles."""
    q, k = np.longdouble(q), np.arange(length - 1, dtype=np.longdouble)
    ratios = (count - k) / (k + 1) * (q / (1 - q))
    return np.exp(count * np.log1p(-q)) * np.append(1, np.cumprod(ratios))


@pytest.mark.parametrize("count", [100, 10_000, 1_000_000, 100_000_000])
@pytest.mark.parametrize("mean", [0.5, 5.0, 100.0])
def test_a_power_of_coins_is_binomial(count, mean):
    q = mean / count / 2
    coin = np.array([1 - q, q])
    low, found = common.self_convolve(coin, count, 1e-15)
    exact = _binomial(count, q, low + len(found))[low:]
    error = float(np.abs(found - exact).sum())
    bound = of_power(coin, count, len(found))
    assert bound.error >= error
    assert bound.norm >= np.linalg.norm(found)
    # It is a bound on the worst case.
    assert bound.error <= 3e4 * error


def test_errors_of_powers_grow_with_the_count():
    # Half a coin's worth of a loss: what is seen exceeds what one transform alone can lose.
    count, q = 10**8, 1e-7
    coin = np.array([1 - q, q])
    low, found = common.self_convolve(coin, count, 1e-15)
    error = float(np.abs(found - _binomial(count, q, low + len(found))[low:]).sum())
    assert error > 100 * of_power(coin, 1, len(found)).error


def test_a_product_adds_what_both_have_lost():
    rng = np.random.default_rng(3)
    one, other = (rng.dirichlet(np.ones(n)) for n in (700, 5000))
    exact = np.convolve(one.astype(np.longdouble), other.astype(np.longdouble))
    error = float(np.abs(signal.fftconvolve(one, other) - exact).sum())
    bound = of_product(of_one(one), of_one(other))
    assert of_one(one).error == 0.0
    assert error <= bound.error <= 1e4 * error
    assert bound.norm >= np.linalg.norm(exact.astype(float))
    lost = of_one(one)._replace(error=1e-9)
    assert of_product(lost, of_one(other)).error >= 1e-9
    assert of_product(of_one(other), lost).error >= 1e-9
    assert math.isclose(of_product(lost, lost).error, 2e-9, rel_tol=1e-2)
