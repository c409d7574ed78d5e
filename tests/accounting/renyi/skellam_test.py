"""Divergences of Skellam noise, against sums over the integers to forty digits."""

import mpmath
import numpy as np
import pytest

from tfdp.accounting.mechanisms import SkellamNoise
from tfdp.accounting.renyi.skellam import skellam_curve


def curve(l1, l2, variance):
    return skellam_curve([SkellamNoise(l1, l2, variance)], np.ones(1))


def divergence(variance, shift, order, most):
    with mpmath.workdps(40):
        a, m = mpmath.mpf(order), mpmath.mpf(variance)
        p = [mpmath.exp(-m) * mpmath.besseli(k, m) for k in range(most + shift + 1)]
        total = mpmath.fsum(
            p[abs(x - shift)] ** a * p[abs(x)] ** (1 - a) for x in range(-most, most + 1)
        )
        return float(mpmath.log(total) / (a - 1))


@pytest.mark.parametrize("variance", [0.1, 1.0, 40.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_bound_is_above_the_divergence_and_near_it_for_usual_noise(variance, shift):
    found = curve(shift, shift, variance)
    for order in (1.2, 2, 2.5, 5, 9.75):
        exact = divergence(variance, shift, order, 40 + int(10 * order * shift))
        (bound,) = found(np.array([float(order)]))
        assert exact <= bound
        if variance == 40.0 and order >= 2:
            assert bound <= 1.15 * exact


def test_whole_orders_by_hand():
    # a S^2 / (2 m) + min(((2 a - 1) S^2 + 6 l1) / (4 m^2), 3 l1 / (2 m)), l1 = 3, S^2 = 5, m = 2:
    # at 2: 2.5 + min(33/16, 9/4); at 4: 5 + min(53/16, 9/4).
    found = curve(3.0, 5**0.5, 2.0)(np.array([2.0, 4.0, 3.0]))
    np.testing.assert_allclose(found[:2], [2.5 + 33 / 16, 7.25])
    # Halfway between 3 and 4: (2 f(3) + 3 f(4)) / 2 / 2.5.
    (between,) = curve(3.0, 5**0.5, 2.0)(np.array([3.5]))
    assert between == pytest.approx((2 * found[2] + 3 * found[1]) / 5)
    (below,) = curve(3.0, 5**0.5, 2.0)(np.array([1 + 1e-9]))
    assert below == pytest.approx(found[0])


def test_is_that_of_a_gaussian_where_noise_is_large():
    orders = np.array([1.5, 2.0, 30.0, 1e6])
    np.testing.assert_allclose(curve(1e6, 1e3, 1e12)(orders), orders * 1e-6 / 2, rtol=0.5)
    np.testing.assert_allclose(curve(1e6, 1e3, 1e12)(orders[1:]), orders[1:] / 2e6, rtol=4e-6)


def test_several_add_up():
    orders = np.array([1.5, 7.0])
    mechanisms = [SkellamNoise(1.0, 1.0, 2.0), SkellamNoise(4.0, 2.0, 9.0)]
    total = skellam_curve(mechanisms, np.array([3.0, 2.0]))(orders)
    parts = 3 * curve(1.0, 1.0, 2.0)(orders) + 2 * curve(4.0, 2.0, 9.0)(orders)
    np.testing.assert_allclose(total, parts)
