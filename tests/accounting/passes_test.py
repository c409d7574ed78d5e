"""tfdp.accounting.passes: the steps of a pass that were drawn together cost one mixture."""

import math

import numpy as np
import pytest

from tfdp.accounting import PRVAccountant, RDPAccountant, make_accountant
from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    PureEpsilon,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
)
from tfdp.accounting.normal_form import collapse, normal_form
from tfdp.accounting.passes import known_step, of_pass
from tfdp.events import (
    ComposedEvent,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PureEpsilonEvent,
    RandomAllocationSampling,
    SampledEvent,
    UnsupportedEventError,
)

ADD, REPLACE, ZERO = NeighboringRelation


def _step(z=1.0, t=10, index=0, k=1, relation=ZERO, release=None):
    release = GaussianSumEvent(1.0, z) if release is None else release
    return SampledEvent(RandomAllocationSampling(t, k, None, index), release, relation)


def _terms(steps, name="rdp"):
    accountant = make_accountant(name)
    for event, count in steps:
        accountant.compose(event, count)
    return accountant._terms()


@pytest.mark.parametrize(("steps", "passes"), [(1, 1), (9, 1), (10, 1), (11, 2), (30, 3)])
def test_a_begun_pass_is_charged_whole(steps, passes):
    assert _terms([(_step(), steps)]) == [(AllocatedGaussian(10, 1.0), passes)]


def test_passes_add_up_and_half_passes_are_two():
    half = [(_step(index=i), 5) for i in range(4)]
    assert _terms(half) == [(AllocatedGaussian(10, 1.0), 4)]


def test_a_pass_costs_what_its_least_noise_would_make_of_it():
    mixed = [(_step(z), 3) for z in (2.0, 1.0, 1.5)]
    assert _terms(mixed) == [(AllocatedGaussian(10, 1.0), 1)]
    other = [*mixed, (_step(3.0, index=1), 10)]
    assert set(_terms(other)) == {(AllocatedGaussian(10, 1.0), 1), (AllocatedGaussian(10, 3.0), 1)}


def test_least_noise_is_needed():
    """Half of the steps with z = 1, half with 3, against two allocations that know no other.

    A mixture over both halves is dearer than what half a pass of each would cost apart.
    """
    generator, size, t, epsilon = np.random.default_rng(3), 400_000, 4, 1.0
    z = np.array([1.0, 1.0, 3.0, 3.0])
    outputs = generator.normal(0, 1, (size, t)) * z
    step = generator.integers(t, size=size)
    outputs[np.arange(size), step] += 1
    losses = np.log(np.mean(np.exp((2 * outputs - 1) / (2 * z * z)), axis=1))
    shares = np.maximum(0.0, -np.expm1(epsilon - losses))
    truth, error = float(shares.mean()), float(shares.std()) / math.sqrt(size)
    accountant = make_accountant("prv")
    accountant.compose(_step(1.0, t), 2).compose(_step(3.0, t), 2)
    assert accountant.get_delta(epsilon) > truth - 6.2 * error
    wrong = make_accountant("prv").compose(_step(3.0, t), 4)
    assert wrong.get_delta(epsilon) < truth - 30 * error


def test_steps_of_several_kinds_are_charged_as_if_the_step_were_known():
    steps = [(_step(2.0), 5), (_step(release=LaplaceSumEvent(1.0, 4.0)), 5)]
    assert set(_terms(steps)) == {(SampledGaussian(1.0, 2.0), 1), (SampledLaplace(1.0, 4.0), 1)}


def test_every_kind_counts_in_all_steps_of_a_pass_that_a_unit_is_in():
    steps = [(_step(2.0, k=3), 5), (_step(k=3, release=LaplaceSumEvent(1.0, 4.0)), 5)]
    assert set(_terms(steps)) == {(SampledGaussian(1.0, 2.0), 3), (SampledLaplace(1.0, 4.0), 3)}


def test_other_passes_do_not_suffer():
    steps = [
        (_step(2.0), 5),
        (_step(release=PureEpsilonEvent(0.5)), 5),
        (_step(2.0, index=1), 10),
    ]
    assert set(_terms(steps)) == {
        (SampledGaussian(1.0, 2.0), 1),
        (PureEpsilon(0.5), 1),
        (AllocatedGaussian(10, 2.0), 1),
    }


def test_order_of_steps_does_not_matter():
    steps = [(_step(z, index=i), 2) for z in (1.0, 2.0) for i in range(3)]
    assert _terms(steps) == _terms(steps[::-1])


def test_several_steps_of_a_pass():
    assert _terms([(_step(t=10, k=3), 10)]) == [(AllocatedGaussian(3, 1.0), 3)]
    assert _terms([(_step(t=10, k=10), 10)]) == [(SampledGaussian(1.0, 1.0), 10)]
    assert _terms([(_step(t=1), 1)]) == [(SampledGaussian(1.0, 1.0), 1)]


def test_relations():
    assert _terms([(_step(relation=ADD), 10)]) == [(AllocatedGaussian(10, 1.0), 1)]
    twice = RemoveThenAdd(AllocatedGaussian(10, 1.0))
    assert _terms([(_step(relation=REPLACE), 10)]) == [(twice, 1)]
    mixed = [(_step(2.0, relation=REPLACE), 5), (_step(1.0, relation=REPLACE), 5)]
    assert _terms(mixed) == [(twice, 1)]
    assert _terms([(_step(t=1, relation=REPLACE), 1)]) == [(SampledGaussian(1.0, 0.5), 1)]


def test_what_is_outside_of_the_proven_range_is_not_amplified():
    assert _terms([(_step(0.01), 10)]) == [(SampledGaussian(1.0, 0.01), 1)]
    twice = _step(0.01, relation=REPLACE)
    assert _terms([(twice, 10)]) == [(SampledGaussian(1.0, 0.005), 1)]
    ((mechanism, _),) = _terms([(_step(1e9, t=2**40), 10)])
    assert mechanism == AllocatedGaussian(2**20, 1e4)


def test_noise_that_differs_by_rounding_is_one_mechanism():
    steps = [(_step(1.5 * (1 + i * 2e-16), index=i), 10) for i in range(50)]
    assert len(_terms(steps)) == 1
    ((mechanism, count),) = _terms(steps)
    assert count == 50 and 1.5 - 1e-8 < mechanism.noise_multiplier <= 1.5


def test_accountants_without_a_price_charge_no_amplification():
    for name in ("gdp", "zcdp", "strong", "basic"):
        assert _terms([(_step(2.0), 5), (_step(1.0), 5)], name) == [(SampledGaussian(1.0, 1.0), 1)]


def test_no_noise_is_no_privacy():
    accountant = make_accountant("rdp").compose(_step(), 3)
    accountant.compose(_step(release=NonPrivateEvent()))
    assert accountant.get_epsilon(1e-5) == math.inf
    assert make_accountant("rdp").compose(_step(0.0, k=3)).get_epsilon(1e-5) == math.inf


def test_nothing_is_nothing():
    nothing = _step(release=ComposedEvent(()))
    assert make_accountant("prv").compose(nothing, 5).get_epsilon(1e-5) == 0
    assert _terms([(nothing, 5), (_step(), 5)]) == [(AllocatedGaussian(10, 1.0), 1)]


def test_mechanisms_of_one_step_are_those_of_a_known_step():
    assert collapse(_step(), 7) == [(SampledGaussian(1.0, 1.0), 1)]
    assert not normal_form(_step()).stands_alone
    assert known_step(AllocatedGaussian(3, 2.0)) == SampledGaussian(1.0, 2.0)
    assert known_step(RemoveThenAdd(AllocatedGaussian(3, 2.0))) == SampledGaussian(1.0, 1.0)
    poisson = RemoveThenAdd(SampledGaussian(0.5, 2.0))
    assert known_step(poisson) is poisson


def test_two_releases_about_one_sample_are_one_gaussian():
    both = ComposedEvent((GaussianSumEvent(1.0, 2.0), GaussianSumEvent(3.0, 6.0)))
    ((mechanism, count),) = _terms([(_step(release=both), 10)])
    assert count == 1
    assert mechanism.noise_multiplier == pytest.approx(math.sqrt(2), rel=1e-8)
    with pytest.raises(UnsupportedEventError, match="Draw a sample for each"):
        mixed = ComposedEvent((GaussianSumEvent(1.0, 2.0), LaplaceSumEvent(1.0, 2.0)))
        make_accountant("rdp").compose(_step(release=mixed))


@pytest.mark.parametrize("cls", [RDPAccountant, PRVAccountant])
def test_groups_cost_at_most_what_is_known_of_one_sum(cls):
    of_two = cls(group_size=2).compose(_step(2.0), 10).get_epsilon(1e-5)
    one = cls().compose(_step(2.0), 10).get_epsilon(1e-5)
    known = cls(group_size=2).compose(GaussianSumEvent(1.0, 2.0)).get_epsilon(1e-5)
    assert one < of_two <= known


def test_of_pass_of_what_is_known_already():
    kind = (SampledGaussian(1.0, 2.0),)
    assert list(of_pass([(kind, 7)], 5)) == [(SampledGaussian(1.0, 2.0), 2)]


def test_more_steps_than_a_pass_has_are_several_passes_of_the_dearest_kind():
    """10 + 10 steps in passes of 10: a unit may have been in a dear step of both."""
    dear, cheap = (PureEpsilon(1.0),), (SampledGaussian(1.0, 9.0),)
    found = dict(of_pass([(dear, 10), (cheap, 10)], 10))
    assert found == {PureEpsilon(1.0): 2, SampledGaussian(1.0, 9.0): 2}
    # One dear step is in one pass only.
    assert dict(of_pass([(dear, 1), (cheap, 19)], 10))[PureEpsilon(1.0)] == 1
