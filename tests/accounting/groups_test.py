"""tfdp.accounting.groups: several neighbours in a row."""

import math

import pytest

from tfdp.accounting import PRVAccountant, RDPAccountant, group_delta, group_epsilon
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.events import GaussianSumEvent, PoissonSampling, PureEpsilonEvent, SampledEvent


class _Pure:
    """(0.5, 0)-private, and (epsilon, 1e-6)-private at any epsilon below."""

    def get_delta(self, epsilon):
        return 0.0 if epsilon >= 0.5 else 1e-6


def test_delta_is_the_geometric_sum():
    # Three in a row at 0.9: (1 + e^0.3 + e^0.6) delta.
    expected = 1e-6 * (1 + math.exp(0.3) + math.exp(0.6))
    assert group_delta(_Pure(), 3, 0.9) == pytest.approx(expected, rel=1e-12)
    assert group_delta(_Pure(), 4, 0.0) == pytest.approx(4e-6, rel=1e-12)
    assert group_delta(_Pure(), 3, 1.5) == 0


def test_epsilon_of_what_is_pure_is_in_proportion():
    assert group_epsilon(_Pure(), 3, 1e-9) == pytest.approx(1.5, rel=1e-8)
    assert group_epsilon(_Pure(), 3, 1e-5) == 0
    accountant = PRVAccountant().compose(PureEpsilonEvent(0.1), 2)
    assert group_epsilon(accountant, 5, 1e-12) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("make", [PRVAccountant, RDPAccountant])
def test_never_below_what_is_exact(make, size):
    accountant = make().compose(GaussianSumEvent(1.0, 20.0), 4)
    exact = gaussian_epsilon(size / 10, 1e-5)
    found = group_epsilon(accountant, size, 1e-5)
    assert found >= exact * (1 - 1e-9)
    assert found < 2.5 * exact
    assert group_delta(accountant, size, found) <= 1e-5


def test_accountants_of_groups_know_more():
    step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 4.0))
    by_theorem = group_epsilon(PRVAccountant().compose(step, 500), 3, 1e-5)
    assert PRVAccountant(group_size=3).compose(step, 500).get_epsilon(1e-5) < by_theorem


def test_no_privacy_has_no_epsilon():
    accountant = PRVAccountant().compose(GaussianSumEvent(1.0, 0.0))
    assert group_delta(accountant, 2, 5.0) == 1
    assert group_epsilon(accountant, 2, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("size", "delta", "error", "match"),
    [
        (0, 1e-5, ValueError, "group_size"),
        (1.5, 1e-5, TypeError, "group_size"),
        (2, 0, ValueError, "target_delta"),
        (2, "small", TypeError, "target_delta"),
    ],
)
def test_arguments_are_checked(size, delta, error, match):
    with pytest.raises(error, match=match):
        group_epsilon(_Pure(), size, delta)
    with pytest.raises(ValueError, match="target_epsilon"):
        group_delta(_Pure(), 2, -1.0)
