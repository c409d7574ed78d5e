"""A tally that is kept up to date says what one says that adds up everything anew."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import RDPAccountant
from tfdp.accounting.correlated import repeated
from tfdp.accounting.mechanisms import SampledGaussian
from tfdp.accounting.normal_form import NormalForm, normal_form
from tfdp.accounting.passes import of_pass
from tfdp.accounting.tally import Tally
from tfdp.events import (
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    FixedOrderSampling,
    GaussianSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    UnsupportedEventError,
)
from tfdp.sampling import RandomAllocation, Shuffled, TruncatedPoisson

ZERO = NeighboringRelation.ZERO_OUT
SUMS = [GaussianSumEvent(1.0, z) for z in (2.0, 3.0)]


def run_step(position, run_id):
    release = CorrelatedGaussianSumEvent(1.0, 4.0, (1.0, 0.5), (1.0,), 6, 3, position, run_id)
    return SampledEvent(FixedOrderSampling(10, 30, position % 3), release, ZERO)


EVENTS = [
    *(SampledEvent(PoissonSampling(0.1), each) for each in SUMS),
    *(SampledEvent(Shuffled(10, 30).description(k), each, ZERO) for k in (0, 1) for each in SUMS),
    *(
        SampledEvent(RandomAllocation(3, population_size=30).description(k), each, ZERO)
        for k in (0, 1)
        for each in SUMS
    ),
    *(run_step(position, run_id) for position in (0, 1) for run_id in (5, 6)),
    SampledEvent(TruncatedPoisson(12, 0.1, 60).description(0), SUMS[0]),
    ComposedEvent((PureEpsilonEvent(0.1), PureEpsilonEvent(0.1))),
]


def form_of(event):
    """Returns what accountants that do not compute distributions make of an event."""
    form = normal_form(event)
    return form.otherwise or form


def added_up(counts):
    """Returns the mechanisms of the events, and how often each counts, from the definitions."""
    totals, runs, passes = collections.Counter(), {}, {}
    for event, count in counts.items():
        form = form_of(event)
        if form.run is not None:
            runs.setdefault(form.run.start, []).append((form, count))
        elif form.drawn_together is not None:
            passes.setdefault(form.drawn_together, []).append((form, count))
        else:
            for mechanism in form.mechanisms:
                totals[mechanism] += -(-count // form.events_per_mechanism) * form.repetitions
    for steps in passes.values():
        kinds = [(form.mechanisms, count) for form, count in steps]
        for mechanism, number in of_pass(
            kinds, steps[0][0].events_per_mechanism, steps[0][0].repetitions
        ):
            totals[mechanism] += number
    for steps in runs.values():
        most = max(count for _, count in steps)
        for mechanism in steps[0][0].mechanisms:
            again, number = repeated(mechanism, steps[0][0].run, most)
            totals[again] += number
    return totals


def tally_of(pairs):
    tally, counts = Tally(), collections.Counter()
    for which, count in pairs:
        count = max(count, -counts[EVENTS[which]])
        if count:
            tally.add(EVENTS[which], form_of(EVENTS[which]), count)
            counts[EVENTS[which]] += count
    return tally, +counts


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(EVENTS) - 1), st.integers(-4, 4)), max_size=12))
def test_is_what_everything_adds_up_to_after_every_change(pairs):
    tally, counts = tally_of(pairs)
    assert dict(tally.terms()) == added_up(counts)
    for event in EVENTS:
        assert (tally.form(event) is not None) == (event in counts)
    forms = [(form_of(event), count) for event, count in counts.items()]
    failure = sum(form.failure_probability * count for form, count in forms)
    assert tally.failure_probability() == pytest.approx(failure, rel=1e-12)
    assert not tally.is_non_private


def test_every_kind_of_event_is_among_them():
    forms = [form_of(event) for event in EVENTS]
    assert any(form.run is not None for form in forms)
    assert any(form.drawn_together is not None for form in forms)
    assert any(form.events_per_mechanism == 3 and form.drawn_together for form in forms)
    assert any(form.failure_probability for form in forms)
    assert any(len(form.mechanisms) == 2 for form in forms)


def test_no_privacy_is_counted():
    event, tally = NonPrivateEvent(), Tally()
    for count, expected in ((2, True), (-1, True), (-1, False)):
        tally.add(event, normal_form(event), count)
        assert tally.is_non_private == expected


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_composed_meanwhile_leaves_nothing_behind(event):
    accountant = RDPAccountant().compose(EVENTS[0], 5)
    before, relation = accountant.get_epsilon(1e-5), accountant.neighboring_relation
    with accountant.composed_meanwhile(event, 7):
        both = RDPAccountant().compose(EVENTS[0], 5).compose(event, 7)
        assert accountant.get_epsilon(1e-5) == both.get_epsilon(1e-5) > before
    assert accountant.get_epsilon(1e-5) == before
    assert accountant.neighboring_relation == relation


def test_run_that_was_composed_meanwhile_is_not_remembered():
    accountant = RDPAccountant()
    with accountant.composed_meanwhile(run_step(0, 5)):
        pass
    other = CorrelatedGaussianSumEvent(2.0, 4.0, (1.0, 0.5), (1.0,), 6, 3, 1, 5)
    other = SampledEvent(FixedOrderSampling(10, 30, 1), other, ZERO)
    accountant.compose(other)
    with pytest.raises(UnsupportedEventError, match="run 5"):
        accountant.compose(run_step(2, 5))


def test_a_unit_may_be_in_the_dearest_step_of_every_pass():
    """10 + 10 steps that say to be of one pass of 10 are two passes; 5 + 5 are one."""
    dear, cheap = (SampledEvent(Shuffled(10, 100).description(0), each, ZERO) for each in SUMS)
    ((mechanism,), _, *_) = form_of(dear)
    for each, passes in ((5, 1), (10, 2)):
        tally = Tally()
        for event in (dear, cheap):
            tally.add(event, form_of(event), each)
        assert tally.terms() == [(mechanism, passes)]


def test_a_run_that_is_taken_back_leaves_its_pass_as_it_was():
    sampling = MinSeparationSampling(0.2, 3, 6)
    run = CorrelatedGaussianSumEvent(1.0, 4.0, (1.0, 0.5), (1.0,), 6, 3, 0, 5)
    run, step = (SampledEvent(sampling, release, ZERO) for release in (run, SUMS[0]))
    alone, tally = Tally(), Tally()
    alone.add(step, form_of(step), 2)
    tally.add(run, form_of(run), 1)
    tally.add(step, form_of(step), 2)
    assert tally.terms() != alone.terms()
    tally.add(run, form_of(run), -1)
    tally.add(step, form_of(step), 1)  # Its pass is counted anew.
    assert tally.terms() == alone.terms()


def test_an_event_that_is_several_mechanisms_counts_so_often():
    """As a sampling of another package may say."""
    mechanism, tally = SampledGaussian(1.0, 2.0), Tally()
    tally.add(SUMS[0], NormalForm((mechanism,), repetitions=3), 2)
    assert tally.terms() == [(mechanism, 6)]
