"""tfdp.accounting.checked_rules: a rule without sense is refused before it prices anything."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from tfdp import events
from tfdp.accounting import amplification as tables
from tfdp.accounting import sampling_rules as module
from tfdp.accounting.checked_rules import wrong_with
from tfdp.accounting.mechanisms import SampledGaussian
from tfdp.accounting.normal_form import normal_form
from tfdp.accounting.sampling_rules import SamplingRule
from tfdp.events import (
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    Sampling,
    UnsupportedEventError,
    registry,
)
from tfdp.events import SampledEvent as Sampled

ZERO = NeighboringRelation.ZERO_OUT


@dataclasses.dataclass(frozen=True)
class _Thinned(Sampling):
    words = "thinned"


@pytest.fixture
def price(monkeypatch):
    """Returns a function from a rule and a release to the mechanisms that it makes."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(module, "_RULES", dict(module._RULES))
    monkeypatch.setattr(module, "_RULES_BY", {})
    registry.register(_Thinned)

    def price(rule, release=None):
        module.register_sampling_rule(_Thinned, ZERO, lambda sampling: rule)
        release = release or GaussianSumEvent(1.0, 2.0)
        return normal_form(Sampled(_Thinned(), release, ZERO)).mechanisms

    return price


def _poisson(*parameters):
    return SamplingRule((1.0,), tables.POISSON, parameters)


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (SamplingRule(()), "at least one factor"),
        (SamplingRule([1.0]), "at least one factor, in a tuple"),
        (SamplingRule((-1.0,)), "positive factors"),
        (SamplingRule((math.inf,)), "positive factors"),
        (SamplingRule(("1",)), "positive factors"),
        (SamplingRule((1.0,), events_per_mechanism=0), "events_per_mechanism that is an integer"),
        (SamplingRule((1.0,), events_per_mechanism=-3), "events_per_mechanism that is an integer"),
        (SamplingRule((1.0,), events_per_mechanism=1.5), "events_per_mechanism that is an integer"),
        (SamplingRule((1.0,), repetitions=0), "repetitions that is an integer of at least 1"),
        (SamplingRule((1.0,), failure_probability=-1e-3), "failure_probability between 0 and 1"),
        (SamplingRule((1.0,), failure_probability=1.5), "failure_probability between 0 and 1"),
        (SamplingRule((1.0,), failure_probability=math.nan), "failure_probability between 0 and 1"),
        (SamplingRule((1.0,), parameters=0.1), "parameters in a tuple"),
        (SamplingRule((1.0,), "poisson", (0.1,)), "amplification that is None or a table"),
        (_poisson(), r"parameters \(q,\) with q above 0 and at most 1"),
        (_poisson(0.1, 0.1), r"parameters \(q,\) with q above 0"),
        (_poisson(0.0), r"parameters \(q,\) with q above 0"),
        (_poisson(-0.1), r"parameters \(q,\) with q above 0"),
        (_poisson(1.5), r"parameters \(q,\) with q above 0"),
        (_poisson(math.nan), r"parameters \(q,\) with q above 0"),
        (_poisson(True), r"parameters \(q,\) with q above 0"),
        (SamplingRule((1.0,), tables.POISSON_REPLACE, (2,)), r"parameters \(q,\) with q above 0"),
        (SamplingRule((1.0,), tables.ALLOCATION, (0,)), "number of steps"),
        (SamplingRule((1.0,), tables.ALLOCATION_REPLACE, (2.5,)), "number of steps"),
        (SamplingRule((1.0,), tables.SEPARATED, (0.1, 0, 5)), "separation, number of steps"),
        (SamplingRule((1.0,), tables.TRUNCATED, (0.1, 2.0, True)), "that a sample is full"),
        (SamplingRule((1.0,), tables.FIXED_SIZE_REPLACE, (0.1, 5, 4)), "1 <= n <= N"),
        (SamplingRule((1.0,), tables.FIXED_SIZE_REPLACE, (0.1, 5, 10)), "1 <= n <= N"),
        (SamplingRule((1.0,), otherwise=1.0), "otherwise that is None or another"),
        (SamplingRule((1.0,), otherwise=SamplingRule(())), "at least one factor"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_rule_without_sense_is_refused(price, rule, match):
    with pytest.raises(UnsupportedEventError, match=f"rule of a _Thinned must return.*{match}"):
        price(rule)


@pytest.mark.parametrize("q", [0.25, np.float64(0.25), 1, 1e-9])
def test_a_rule_of_poisson_samples_is_accepted(price, q):
    assert price(_poisson(q)) == (SampledGaussian(q, 2.0),)


SAMPLINGS = [
    events.BallsInBinsSampling(10, 3, 7),
    events.CyclicPoissonSampling(0.1, 4, 1),
    events.FixedOrderSampling(50, 1000),
    events.FixedSizeSampling(50, 1000),
    events.FullBatchSampling(),
    events.MinSeparationSampling(0.1, 3, 10),
    events.PoissonSampling(0.1),
    events.RandomAllocationSampling(10, 3),
    events.ShuffledSampling(50, 1000),
    events.TruncatedPoissonSampling(0.05, 1000, 60),
    events.UnknownSampling(),
]


def test_the_rules_of_tfdp_make_sense():
    samplings = {type(sampling): sampling for sampling in SAMPLINGS}
    rules = {key: rule for key, rule in module._RULES.items() if registry.is_ours(key[0])}
    assert rules.keys() == set(itertools.product(samplings, NeighboringRelation))
    without = rules.pop((events.CyclicPoissonSampling, NeighboringRelation.ADD_OR_REMOVE_ONE))
    with pytest.raises(UnsupportedEventError, match="moves others to other groups"):
        without(samplings[events.CyclicPoissonSampling])
    for (kind, relation), rule in rules.items():
        assert wrong_with(rule(samplings[kind])) is None, (kind, relation)


OWN = {SampledGaussian: lambda mechanism, q: SampledGaussian(q, mechanism.noise_multiplier)}


def test_a_table_of_its_own_is_asked_for_what_it_has(price):
    rule = SamplingRule((1.0,), OWN, (0.25,))
    assert price(rule) == (SampledGaussian(0.25, 2.0),)
    with pytest.raises(UnsupportedEventError, match="becomes of a SampledLaplace.*needs an entry"):
        price(rule, LaplaceSumEvent(1.0, 2.0))


@pytest.mark.parametrize("q", [0.0, -0.5, 1.5, math.nan])
def test_a_table_of_its_own_must_make_a_mechanism(price, q):
    with pytest.raises(UnsupportedEventError, match="must return a mechanism with positive"):
        price(SamplingRule((1.0,), OWN, (q,)))
    with pytest.raises(UnsupportedEventError, match="must return a mechanism with positive"):
        price(SamplingRule((1.0,), {SampledGaussian: lambda *_: q}))
