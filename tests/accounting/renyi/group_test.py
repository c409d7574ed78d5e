"""tfdp.accounting.renyi.group: several neighbours in a row."""

import mpmath
import numpy as np
import pytest

from tfdp.accounting import RDPAccountant
from tfdp.accounting.renyi.gaussian import rdp_sampled_gaussian
from tfdp.accounting.renyi.group import group_rdp
from tfdp.accounting.renyi.pure import rdp_pure_epsilon
from tfdp.events import (
    GaussianSumEvent,
    LaplaceSumEvent,
    PoissonSampling,
    SampledEvent,
    TruncatedPoissonSampling,
    UnsupportedEventError,
)

ORDERS = np.array([1.01, 2.0, 7.5, 100.0])


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_gaussians_cost_the_square_exactly(size):
    # Moving by k costs what a noise multiplier of z / k does.
    of_group = group_rdp(lambda orders: orders / 2, size)
    assert of_group(ORDERS) == pytest.approx(size**2 * ORDERS / 2, rel=1e-13)


def test_at_most_k_times_for_pure_epsilon_at_infinity():
    of_group = group_rdp(lambda orders: rdp_pure_epsilon(0.5, orders), 3)
    assert of_group(np.array([1e9])) == pytest.approx(1.5, rel=1e-6)


def _mixture_rdp(q, z, first, second, order):
    """Between Poisson samples in which one unit is replaced: means `first` and `second`."""
    with mpmath.workdps(20):

        def density(x, mean):
            return (1 - q) * mpmath.npdf(x, 0, z) + q * mpmath.npdf(x, mean, z)

        moment = mpmath.quad(
            lambda x: density(x, first) ** order * density(x, second) ** (1 - order),
            mpmath.linspace(-2 * order - 12 * z, 2 * order + 12 * z, 14),
        )
        return float(mpmath.log(moment) / (order - 1))


@pytest.mark.parametrize(
    ("q", "z", "order"), [(0.01, 0.8, 6.0), (0.01, 4.0, 1.5), (0.01, 4.0, 6.0), (0.3, 0.8, 1.5)]
)
def test_holds_for_replacements_in_poisson_samples(q, z, order):
    bound = group_rdp(lambda orders: rdp_sampled_gaussian(q, z, orders), 2)(np.array([order]))[0]
    worst = max(_mixture_rdp(q, z, 1, mean, order) for mean in (-1, 0, 0.5))
    assert worst <= bound
    if z == 4 and q == 0.01:  # Where privacy is good it is nearly exact.
        assert bound <= 1.15 * worst


def test_group_size_of_an_accountant():
    step = SampledEvent(PoissonSampling(1.0), GaussianSumEvent(1.0, 12.0))
    single = RDPAccountant().compose(step, 9)
    group = RDPAccountant(group_size=3).compose(step)
    # Three units in one step cost what one costs in nine.
    assert group.get_epsilon(1e-5) == pytest.approx(single.get_epsilon(1e-5), rel=1e-6)
    assert group.get_delta(0.5) == pytest.approx(single.get_delta(0.5), rel=1e-4)


def test_larger_groups_cost_more():
    step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 2.0))
    epsilons = [
        RDPAccountant(group_size=k).compose(step, 100).get_epsilon(1e-5) for k in (1, 2, 3, 4)
    ]
    assert epsilons == sorted(set(epsilons))
    assert epsilons[1] > 1.5 * epsilons[0]


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (1.0, TypeError), (True, TypeError)])
def test_group_size_is_checked(size, error):
    with pytest.raises(error, match="group_size"):
        RDPAccountant(group_size=size)
    with pytest.raises(error, match="group_size"):
        group_rdp(lambda orders: orders, size)


def test_truncated_samples_of_groups_are_refused():
    step = SampledEvent(TruncatedPoissonSampling(0.1, 100, 50), LaplaceSumEvent(1.0, 1.0))
    assert RDPAccountant().supports(step)
    with pytest.raises(UnsupportedEventError, match="group_size=2.*TruncatedPoissonSampling"):
        RDPAccountant(group_size=2).compose(step)
