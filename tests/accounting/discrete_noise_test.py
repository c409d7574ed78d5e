"""Discrete Gaussian sums cost what their probabilities, added up one by one, say, or more."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import (
    GDPAccountant,
    PLDAccountant,
    PRVAccountant,
    RDPAccountant,
    ZCDPAccountant,
    make_accountant,
)
from tfdp.accounting.discrete_noise import distance_from_rounded_gaussian
from tfdp.accounting.dp_events import to_dp_event
from tfdp.accounting.mechanisms import NoPrivacy, SampledGaussian, TruncatedGaussian
from tfdp.accounting.normal_form import NormalForm, effective_noise_multiplier, normal_form
from tfdp.accounting.replay import why_not_private
from tfdp.events import (
    ComposedEvent,
    DiscreteGaussianSumEvent,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnsupportedEventError,
    scale_sensitivity,
)
from tfdp.ledger import PrivacyLedger

EVENT = DiscreteGaussianSumEvent(1.0, 2.0, 2.0**-30, 2**30)
CONTINUOUS = GaussianSumEvent(1.0, 2.0)


def discrete(sigma, low, high):
    """Returns probabilities of the integers from low to high."""
    support = np.arange(low, high + 1)
    weights = np.exp(-((support / sigma) ** 2) / 2)
    return weights / np.exp(-((np.arange(-60 * sigma, 60 * sigma + 1) / sigma) ** 2) / 2).sum()


def rounded(sigma, low, high):
    edges = np.arange(low, high + 2) - 0.5
    # Of the side that is nearer, so that small probabilities keep their digits.
    left, right = stats.norm.cdf(edges / sigma), stats.norm.sf(edges / sigma)
    return np.where(edges[1:] < 0, left[1:] - left[:-1], right[:-1] - right[1:])


@pytest.mark.parametrize("sigma", [2, 3, 8, 30])
@pytest.mark.parametrize("coordinates", [1, 2, 100])
def test_distance_of_the_noises_is_within_the_bound(sigma, coordinates):
    ours = distance_from_rounded_gaussian(float(sigma), coordinates)
    p, r = discrete(sigma, -12 * sigma, 12 * sigma), rounded(sigma, -12 * sigma, 12 * sigma)
    kept = p > 1e-30
    divergence = np.sum(p[kept] * np.log(p[kept] / r[kept]))
    assert 0 < divergence < 0.008 / sigma**4
    if coordinates == 1:
        distance = np.abs(p - r).sum() / 2
    elif coordinates == 2:
        distance = np.abs(np.outer(p, p) - np.outer(r, r)).sum() / 2
    else:  # Of so many outcomes Pinsker's inequality says enough.
        distance = math.sqrt(coordinates * divergence / 2)
    assert ours / 10 < distance < ours


def hockey_stick(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0).sum()


def deltas(with_record, without, steps, epsilon):
    """Returns delta of `steps` such releases in both directions, added up over all outcomes."""
    p, q = with_record.ravel(), without.ravel()
    for _ in range(steps - 1):
        p = np.multiply.outer(p, with_record.ravel()).ravel()
        q = np.multiply.outer(q, without.ravel()).ravel()
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def outcomes(sigma, shift, q):
    """Returns the probabilities of all outcomes, with and without the record."""
    without = with_record = np.ones(())
    for step in shift:
        low, high = -9 * sigma - abs(step), 9 * sigma + abs(step)
        without = np.multiply.outer(without, discrete(sigma, low, high))
        with_record = np.multiply.outer(with_record, discrete(sigma, low - step, high - step))
    return (1 - q) * without + q * with_record, without


CASES = [
    (20, [20], 1.0, 1),
    (20, [20], 0.2, 2),
    (2, [3], 0.3, 2),
    (20, [12, 16], 0.2, 1),
    (15, [-1, 22], 0.5, 1),
]


@pytest.mark.parametrize("sigma, shift, q, steps", CASES)
@pytest.mark.parametrize("name", ["rdp", "prv", "pld"])
def test_price_covers_what_the_probabilities_say(sigma, shift, q, steps, name):
    bound = float(np.hypot(*shift)) if len(shift) > 1 else float(abs(shift[0]))
    p, without = outcomes(sigma, shift, q)

    def price(bound, epsilon):
        event = DiscreteGaussianSumEvent(bound, float(sigma), 1.0, len(shift))
        step = SampledEvent(PoissonSampling(q), event)
        return make_accountant(name).compose(step, steps).get_delta(epsilon)

    for epsilon in (0.05, 0.3, 1.0):
        true = deltas(p, without, steps, epsilon)
        assert true <= price(bound, epsilon)
    # A bound that is too small by a fifth would be noticed: the price is no larger than it must be.
    if sigma >= 15 and name != "rdp":
        assert price(0.8 * bound, 0.3) < deltas(p, without, steps, 0.3)


def test_costs_what_a_gaussian_does():
    step, gaussian = (SampledEvent(PoissonSampling(0.01), e) for e in (EVENT, CONTINUOUS))
    for accountant in (RDPAccountant, PLDAccountant, PRVAccountant):
        epsilon = accountant().compose(gaussian, 1000).get_epsilon(1e-5)
        assert accountant().compose(step, 1000).get_epsilon(1e-5) == pytest.approx(
            epsilon, rel=1e-6
        )
    for accountant in (ZCDPAccountant, GDPAccountant):
        epsilon = accountant().compose(CONTINUOUS, 10).get_epsilon(1e-5)
        found = accountant().compose(EVENT, 10).get_epsilon(1e-5)
        assert epsilon <= found <= epsilon * (1 + 1e-6)


def test_distance_is_a_failure_of_every_release():
    tau = distance_from_rounded_gaussian(EVENT.noise_stddev / EVENT.granularity, 2**30)
    assert tau == math.sqrt(2**30) / 10 / 2**62
    expected = NormalForm((SampledGaussian(1.0, 2.0),), failure_probability=tau)
    assert normal_form(EVENT) == expected
    # Of two about one sample, and of a sample that may be too large besides.
    two = SampledEvent(TruncatedPoissonSampling(0.1, 100, 30), ComposedEvent((EVENT, EVENT)))
    form = normal_form(two)
    crowded = stats.binom.sf(29, 100, 0.1)
    z = pytest.approx(math.sqrt(2))
    assert form.mechanisms == (TruncatedGaussian(0.1, pytest.approx(crowded), z, False),)
    assert form.failure_probability == pytest.approx(2 * tau, rel=1e-12)
    relation = NeighboringRelation.REPLACE_ONE
    replaced = normal_form(dataclasses.replace(two, neighboring_relation=relation))
    tail = stats.binom.sf(30, 100, 0.1)
    assert replaced.failure_probability == pytest.approx(tail + 2 * tau, rel=1e-12)
    # Once a step, however many steps make a pass.
    passes = SampledEvent(ShuffledSampling(10, 100), EVENT, NeighboringRelation.ZERO_OUT)
    accountant = RDPAccountant().compose(passes, 20)
    gaussian = RDPAccountant().compose(SampledEvent(FullBatchSampling(), CONTINUOUS), 2)
    expected = gaussian.get_delta(1.0) + (1 + math.e) * 20 * tau
    assert accountant.get_delta(1.0) == pytest.approx(expected, rel=1e-12)


def test_collapses_with_continuous_sums():
    both = ComposedEvent((EVENT, CONTINUOUS))
    assert effective_noise_multiplier(both) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("stddev, tau", [(1.9, 1.0), (2.0, 32 / 40), (4.0, 32 / 160)])
def test_noise_of_few_steps_promises_little(stddev, tau):
    event = DiscreteGaussianSumEvent(1.0, stddev, 1.0, 2**10)
    assert distance_from_rounded_gaussian(stddev, 2**10) == pytest.approx(tau)
    assert normal_form(event).failure_probability == pytest.approx(tau)
    assert RDPAccountant().compose(event).get_epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        DiscreteGaussianSumEvent(1.0, 0.0, 2.0**-30, 1),
        DiscreteGaussianSumEvent(1.0, 2.0, 2.0**-30, 1, seeded=True),
    ],
)
def test_no_noise_and_seeded_noise_are_no_privacy(event):
    assert normal_form(event).mechanisms == (NoPrivacy(),)
    assert RDPAccountant().compose(event).get_epsilon(1e-5) == math.inf
    assert len(why_not_private(event)) == 1


@pytest.mark.parametrize("accountant", [RDPAccountant, PRVAccountant])
def test_groups_are_refused(accountant):
    with pytest.raises(UnsupportedEventError, match=r"discrete noise.*DiscreteGaussianSumEvent"):
        accountant(group_size=2).compose(EVENT)


def test_has_no_counterpart_in_dp_accounting():
    ledger = PrivacyLedger()
    ledger.append(EVENT)
    with pytest.raises(UnsupportedEventError, match=r"discrete noise.*DiscreteGaussianSumEvent"):
        to_dp_event(ledger)


def test_sensitivity_is_scaled_exactly():
    scaled = scale_sensitivity(EVENT, 2)
    assert scaled == DiscreteGaussianSumEvent(2.0, 2.0, 2.0**-30, 2**30)
    assert scaled.noise_multiplier == 1.0


def test_ledger_keeps_it_and_replays():
    step = SampledEvent(PoissonSampling(0.01, 1000), EVENT)
    ledger = PrivacyLedger()
    ledger.append(step, 100)
    again = PrivacyLedger.from_json_lines(ledger.to_json_lines())
    assert [tuple(entry) for entry in again] == [(step, 100)]
    epsilon = again.replay(RDPAccountant()).get_epsilon(1e-5)
    assert epsilon == RDPAccountant().compose(step, 100).get_epsilon(1e-5)


@pytest.mark.parametrize(
    "arguments",
    [(0.0, 1.0, 1.0, 1), (1.0, -1.0, 1.0, 1), (1.0, 1.0, 0.0, 1), (1.0, 1.0, 1.0, 0)],
)
def test_event_out_of_range_is_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        DiscreteGaussianSumEvent(*arguments)
