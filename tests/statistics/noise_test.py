"""Noise on whole numbers: its distribution, its event, and what a value can become."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tfdp.accounting import RDPAccountant
from tfdp.events import DiscreteGaussianSumEvent, PureEpsilonEvent
from tfdp.noise import system_random_source
from tfdp.statistics.noise import STEPS, Noise, in_steps
from tfdp.statistics.table import quiet


def test_noise_is_that_of_the_event():
    zeros = np.zeros(3000, np.int64)
    laplace = Noise.of(0.5, None).add(zeros, system_random_source())
    assert stats.kstest(laplace, stats.laplace(0, 2.0).cdf).pvalue > 1e-9
    assert stats.kstest(laplace, stats.laplace(0, 1.0).cdf).pvalue < 1e-9
    gaussian = Noise.of(None, 3.0).add(zeros, system_random_source())
    assert stats.kstest(gaussian, stats.norm(0, 3.0).cdf).pvalue > 1e-9
    assert stats.kstest(gaussian, stats.norm(0, 2.0).cdf).pvalue < 1e-9
    assert Noise.of(0.5, None).event() == PureEpsilonEvent(0.5)
    assert Noise.of(None, 3.0).event(7) == DiscreteGaussianSumEvent(1.0, 3.0, 1 / STEPS, 7)


@pytest.mark.parametrize("noise", [Noise.of(0.5, None), Noise.of(None, 3.0)])
@pytest.mark.parametrize("number", [2, 3])
def test_shared_noise_costs_together_what_one_costs(noise, number):
    one = RDPAccountant().compose(noise.event()).get_epsilon(1e-6)
    several = RDPAccountant().compose(noise.shared(number).event(), number).get_epsilon(1e-6)
    assert several <= one * (1 + 1e-6)
    assert several >= one * 0.95 or noise.epsilon is not None


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=5),
    st.floats(1e-18, 1e30),
)
def test_no_value_becomes_more_than_the_bound(values, bound):
    steps = quiet(in_steps)(np.array(values), bound)
    assert np.all(np.abs(steps) <= STEPS)
    for value, step in zip(values, steps, strict=True):
        assert math.isfinite(value) or step == 0
        assert step == 0 or math.copysign(1, value) == math.copysign(1, step)
    assert in_steps(np.array([bound, -bound, 2 * bound]), bound).tolist() == [STEPS, -STEPS, STEPS]


@pytest.mark.parametrize(
    ("epsilon", "noise_multiplier"),
    [(None, None), (1.0, 1.0), (0.0, None), (None, 0.0), (-1, None)],
)
def test_one_of_two_is_given(epsilon, noise_multiplier):
    with pytest.raises(ValueError, match="epsilon|noise_multiplier"):
        Noise.of(epsilon, noise_multiplier)


def test_noise_of_many_rows_is_refused_where_it_cannot_be_drawn():
    drawn = (
        Noise.of(None, 1e6).of_each(10).shared(2).add(np.zeros(2, np.int64), system_random_source())
    )
    assert np.all(np.isfinite(drawn))
    with pytest.raises(
        ValueError, match="noise_multiplier times max_contributions must be at most"
    ):
        Noise.of(None, 1e6).of_each(11)
