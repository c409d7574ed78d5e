"""tfdp.accounting.sampling_rules: what every sampling policy is worth under every relation."""

import dataclasses
import itertools
import math

import pytest
from scipy import stats

from tfdp.accounting import sampling_rules as module
from tfdp.accounting.mechanisms import (
    FixedSizeGaussian,
    RandomizedResponse,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    TruncatedGaussian,
)
from tfdp.accounting.normal_form import collapse, normal_form
from tfdp.events import (
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    PoissonSampling,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    SampledEvent,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnknownSampling,
    UnsupportedEventError,
    registry,
)

ADD, REPLACE, ZERO = NeighboringRelation


ROOT5 = math.sqrt(5)


# 25 of 100: four steps a pass. Seven steps have begun two passes.
SHUFFLED = ShuffledSampling(batch_size=25, population_size=100)


ALLOCATED = RandomAllocationSampling(4)
POISSON, FIXED = PoissonSampling(0.1), FixedSizeSampling(10, 100)


def _mechanisms(sampling, release, relation):
    return list(normal_form(SampledEvent(sampling, release, relation)).mechanisms)


@pytest.mark.parametrize(
    ("sampling", "relation", "mechanism", "count"),
    [
        (POISSON, ADD, SampledGaussian(0.1, 1.5), 7),
        (POISSON, REPLACE, RemoveThenAdd(SampledGaussian(0.1, 1.5)), 7),
        (POISSON, ZERO, SampledGaussian(0.1, 1.5), 7),
        (PoissonSampling(1.0), ADD, SampledGaussian(1, 1.5), 7),
        (PoissonSampling(1.0), REPLACE, SampledGaussian(1, 0.75), 7),
        (PoissonSampling(1.0), ZERO, SampledGaussian(1, 1.5), 7),
        (FullBatchSampling(), ADD, SampledGaussian(1, 1.5), 7),
        (FullBatchSampling(), REPLACE, SampledGaussian(1, 0.75), 7),
        (FullBatchSampling(), ZERO, SampledGaussian(1, 1.5), 7),
        (FIXED, ADD, SampledGaussian(0.1, 0.75), 7),
        (FIXED, REPLACE, FixedSizeGaussian(10, 100, 0.75), 7),
        (FIXED, ZERO, SampledGaussian(1, 1.5), 7),
        (FixedSizeSampling(9, 9), ADD, SampledGaussian(1, 0.75), 7),
        (FixedSizeSampling(9, 9), REPLACE, SampledGaussian(1, 0.75), 7),
        (FixedSizeSampling(9, 9), ZERO, SampledGaussian(1, 1.5), 7),
        # For whoever knows the step; tests/accounting/passes_test.py has the rest.
        (ALLOCATED, ADD, SampledGaussian(1, 1.5), 2),
        (ALLOCATED, REPLACE, SampledGaussian(1, 0.75), 2),
        (ALLOCATED, ZERO, SampledGaussian(1, 1.5), 2),
        (SHUFFLED, ADD, SampledGaussian(1, 1.5 / ROOT5), 2),
        (SHUFFLED, REPLACE, SampledGaussian(1, 0.75), 2),
        (SHUFFLED, ZERO, SampledGaussian(1, 1.5), 2),
        (UnknownSampling(), ADD, SampledGaussian(1, 0.75), 7),
        (UnknownSampling(), REPLACE, SampledGaussian(1, 0.75), 7),
        (UnknownSampling(), ZERO, SampledGaussian(1, 1.5), 7),
    ],
)
def test_sampling_and_relation_make_a_mechanism_of_a_gaussian(sampling, relation, mechanism, count):
    event = SampledEvent(sampling, GaussianSumEvent(2.0, 3.0), relation)
    assert collapse(event, 7) == [(mechanism, count)]


def test_every_sampling_is_priced_under_every_relation():
    samplings = {registry.registered(name) for name in registry.registered_names(Sampling)}
    assert set(module._RULES) == set(itertools.product(samplings, NeighboringRelation))


@pytest.mark.parametrize("sampling", [POISSON, FIXED, FullBatchSampling(), UnknownSampling()])
def test_reports_are_never_amplified_nor_scaled(sampling):
    release = RandomizedResponseEvent(0.4, 3)
    assert _mechanisms(sampling, release, REPLACE) == [RandomizedResponse(0.4, 3, False)]
    assert _mechanisms(sampling, release, ZERO) == [RandomizedResponse(0.4, 3, True)]
    with pytest.raises(UnsupportedEventError, match="RandomizedResponseEvent.*ADD_OR_REMOVE_ONE"):
        _mechanisms(sampling, release, ADD)


@pytest.mark.parametrize(
    ("relation", "larger", "mechanism"),
    [
        (ADD, 1001, SampledLaplace(0.1, 1.5)),
        (ZERO, 1000, SampledLaplace(0.1, 1.5)),
        (REPLACE, 1000, RemoveThenAdd(SampledGaussian(0.1, 1.5))),
    ],
)
def test_truncated_sample_fails_where_a_sample_is_too_large(relation, larger, mechanism):
    release = GaussianSumEvent(2.0, 3.0) if relation is REPLACE else LaplaceSumEvent(2.0, 3.0)
    event = SampledEvent(TruncatedPoissonSampling(0.1, 1000, 130), release, relation)
    form = normal_form(event)
    assert form.mechanisms == (mechanism,)
    expected = sum(stats.binom.pmf(k, larger, 0.1) for k in range(131, larger + 1))
    assert form.failure_probability == pytest.approx(expected, rel=1e-9)
    assert 1e-4 < expected < 1e-2
    with pytest.raises(UnsupportedEventError, match="TruncatedPoissonSampling"):
        collapse(event, 1)


@pytest.mark.parametrize(("relation", "others"), [(ADD, 1000), (ZERO, 999)])
def test_gaussian_on_a_truncated_sample_never_fails(relation, others):
    event = SampledEvent(
        TruncatedPoissonSampling(0.1, 1000, 110), GaussianSumEvent(2.0, 3.0), relation
    )
    form = normal_form(event)
    (mechanism,) = form.mechanisms
    # The others leave no place for one more.
    crowded = sum(stats.binom.pmf(k, others, 0.1) for k in range(110, others + 1))
    expected = TruncatedGaussian(0.1, pytest.approx(crowded, rel=1e-9), 1.5, relation is ZERO)
    assert mechanism == expected and 0.1 < crowded < 0.2
    assert form.failure_probability == 0


def test_sample_that_is_never_too_large_is_a_poisson_sample():
    sampling = TruncatedPoissonSampling(0.1, 1000, 1001)
    assert normal_form(SampledEvent(sampling, GaussianSumEvent(2.0, 3.0))) == normal_form(
        SampledEvent(POISSON, GaussianSumEvent(2.0, 3.0))
    )


@pytest.mark.parametrize("steps", range(1, 13))
def test_begun_pass_counts_as_whole(steps):
    event = SampledEvent(SHUFFLED, GaussianSumEvent(1.0, 1.0), ZERO)
    assert collapse(event, steps)[0][1] == (1 if steps <= 4 else 2 if steps <= 8 else 3)


@dataclasses.dataclass(frozen=True)
class _Turns(Sampling):
    words = "in turn"
    parts: int


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    monkeypatch.setattr(module, "_RULES", dict(module._RULES))
    monkeypatch.setattr(module, "_RULES_BY", {})
    return registry.register(_Turns)


def _rule(sampling):
    return module.SamplingRule((2.0,), events_per_mechanism=sampling.parts)


def test_a_sampling_of_another_package_is_worth_what_it_says(registered):
    module.register_sampling_rule(registered, ZERO, _rule)
    step = SampledEvent(registered(4), GaussianSumEvent(1.0, 2.0), ZERO)
    assert collapse(step, 5) == [(SampledGaussian(1, 1.0), 2)]
    assert module.sampling_rules_of_others(step) == {f"_Turns (by {__name__})"}
    with pytest.raises(UnsupportedEventError, match="_Turns is not supported under REPLACE_ONE"):
        collapse(dataclasses.replace(step, neighboring_relation=REPLACE), 5)


@pytest.mark.parametrize(
    "found", [1.0, None, module.SamplingRule((0.0,)), module.SamplingRule((math.nan,))], ids=repr
)
def test_a_rule_of_another_package_that_is_none_is_refused(registered, found):
    module.register_sampling_rule(registered, ZERO, lambda sampling: found)
    step = SampledEvent(registered(4), GaussianSumEvent(1.0, 2.0), ZERO)
    with pytest.raises(UnsupportedEventError, match="rule of a _Turns must return a SamplingRule"):
        collapse(step, 1)


def test_bad_rules_are_refused(registered):
    for _ in range(2):  # Defined anew.
        module.register_sampling_rule(registered, ZERO, _rule)
    for kind, relation, rule, error, message in (
        (registered, ADD, math.fsum, ValueError, f"_Turns has rules already, by {__name__}"),
        (UnknownSampling, ZERO, _rule, ValueError, "UnknownSampling has rules already, by tfdp"),
        (GaussianSumEvent, ZERO, _rule, TypeError, "Register the class of samplings first"),
        (registered, "zero_out", _rule, TypeError, "relation must be a NeighboringRelation"),
        (registered, ADD, None, TypeError, "must be a function"),
    ):
        with pytest.raises(error, match=message):
            module.register_sampling_rule(kind, relation, rule)


def test_a_rule_of_another_package_names_draws_and_slots_together(registered):
    found = module.SamplingRule((1.0,), drawn_once="bins")
    module.register_sampling_rule(registered, ZERO, lambda sampling: found)
    with pytest.raises(UnsupportedEventError, match="both what was drawn once and"):
        normal_form(SampledEvent(registered(4), GaussianSumEvent(1.0, 2.0), ZERO))
