"""What the best of many runs costs, by every accountant, beside what one run costs."""

import pytest

from tfdp.accounting import make_accountant
from tfdp.accounting.mechanisms import BestOfPureRuns, BestOfRuns, NoPrivacy
from tfdp.accounting.normal_form import normal_form
from tfdp.accounting.replay import why_not_private
from tfdp.events import (
    ComposedEvent,
    EpsilonDeltaEvent,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    ParallelComposition,
    PoissonSampling,
    PoissonSelectedRunEvent,
    PureEpsilonEvent,
    RunEvent,
    SampledEvent,
    SelectedRunEvent,
    UnsupportedEventError,
)
from tfdp.events.protection import protection

STEP = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 1.1))
RUN = RunEvent((STEP,), (1000,))
PURE = RunEvent((PureEpsilonEvent(0.3),), (2,))
OTHERS = ["prv", "pld", "zcdp", "gdp", "strong", "basic"]


def _epsilon(event, accountant="rdp", count=1, delta=1e-5):
    return make_accountant(accountant).compose(event, count).get_epsilon(delta)


def test_a_search_costs_two_to_three_runs_however_long():
    one = _epsilon(STEP, count=1000)
    for event in (SelectedRunEvent((RUN,), 1.0, 0.01), SelectedRunEvent((RUN,), 0.0, 0.001)):
        assert one < _epsilon(event) < 3 * one
    # All hundred runs, one after the other, and a Poisson number of them.
    assert one < _epsilon(PoissonSelectedRunEvent((RUN,), 100.0)) < _epsilon(STEP, count=100_000)
    assert _epsilon(STEP, count=100_000) > 8 * one


@pytest.mark.parametrize("accountant", ["rdp", *OTHERS])
def test_pure_runs_are_priced_by_all(accountant):
    event = SelectedRunEvent((PURE,), 1.0, 0.1)
    assert normal_form(event).mechanisms[0].epsilon == pytest.approx(0.6)
    assert _epsilon(event, accountant, delta=0) == pytest.approx(1.8, rel=1e-9)
    assert _epsilon(event, accountant) == pytest.approx(1.8, rel=1e-4)


@pytest.mark.parametrize("accountant", OTHERS)
@pytest.mark.parametrize(
    "event", [SelectedRunEvent((RUN,), 1.0, 0.1), PoissonSelectedRunEvent((PURE,), 10.0)]
)
def test_others_are_refused_where_only_divergences_are_known(accountant, event):
    with pytest.raises(UnsupportedEventError, match="BestOf"):
        make_accountant(accountant).compose(event)


def test_dearest_run_counts():
    cheap = RunEvent((STEP,), (100,))
    both = SelectedRunEvent((cheap, RUN), 1.0, 0.1)
    assert _epsilon(both) == pytest.approx(_epsilon(SelectedRunEvent((RUN,), 1.0, 0.1)))
    assert _epsilon(SelectedRunEvent((cheap,), 1.0, 0.1)) < _epsilon(both)


def test_what_releases_nothing_and_what_is_not_private():
    assert normal_form(SelectedRunEvent((RunEvent((NonPrivateEvent(),), (1,)),), 1.0, 0.5))[0] == (
        NoPrivacy(),
    )
    without_noise = RunEvent((GaussianSumEvent(1.0, 0.0),), (1,))
    event = SelectedRunEvent((RUN, without_noise), 1.0, 0.5)
    assert _epsilon(event) == float("inf")
    assert event.why_not_private() is not None


@pytest.mark.parametrize(
    "around",
    [
        lambda event: event,
        lambda event: ComposedEvent((GaussianSumEvent(1.0, 1.0), event)),
        lambda event: ParallelComposition((GaussianSumEvent(1.0, 1.0), event)),
        lambda event: SampledEvent(FullBatchSampling(10), event),
        lambda event: SampledEvent(FullBatchSampling(10), ComposedEvent((event,))),
    ],
    ids=["alone", "composed", "parallel", "sampled", "both"],
)
@pytest.mark.parametrize("lost", [GaussianSumEvent(1.0, 0.0), NonPrivateEvent()])
def test_whatever_is_around_a_release_says_why_it_is_not_private(around, lost):
    for event, is_lost in ((lost, True), (GaussianSumEvent(1.0, 1.0), False)):
        step = around(event)
        best = SelectedRunEvent((RUN, RunEvent((step,), (1,))), 1.0, 0.5)
        for each in (step, best, ComposedEvent((best,))):
            assert each.why_not_private() == event.why_not_private()
            assert bool(why_not_private(each)) == is_lost


def test_kinds_of_mechanisms():
    assert isinstance(
        normal_form(SelectedRunEvent((PURE,), 0.5, 0.5)).mechanisms[0], BestOfPureRuns
    )
    mixed = SelectedRunEvent((PURE, RUN), 0.5, 0.5)
    assert isinstance(normal_form(mixed).mechanisms[0], BestOfRuns)


@pytest.mark.parametrize(
    "step", [EpsilonDeltaEvent(0.1, 1e-6), RUN, SelectedRunEvent((PURE,), 1.0, 0.5)]
)
def test_steps_that_cannot_be_part_of_a_run(step):
    with pytest.raises((UnsupportedEventError, TypeError)):
        normal_form(SelectedRunEvent((RunEvent((step,), (1,)),), 1.0, 0.5))


def test_a_run_alone_or_within_a_sample_has_no_price():
    for event in (RUN, SampledEvent(PoissonSampling(0.1), SelectedRunEvent((PURE,), 1.0, 0.5))):
        with pytest.raises(UnsupportedEventError, match="not supported"):
            normal_form(event)


def test_protection_is_that_of_the_steps():
    replaced = SampledEvent(
        PoissonSampling(0.01), GaussianSumEvent(1.0, 1.1), NeighboringRelation.REPLACE_ONE, "user"
    )
    event = SelectedRunEvent((RunEvent((replaced,), (10,)),), 1.0, 0.5)
    assert protection(event) == (NeighboringRelation.REPLACE_ONE, "user")
    added = SelectedRunEvent((RunEvent((STEP,), (10,)),), 1.0, 0.5)
    assert _epsilon(event) > _epsilon(added)
    other = SampledEvent(STEP.sampling, STEP.event, STEP.neighboring_relation, "example")
    with pytest.raises(UnsupportedEventError, match="no common epsilon"):
        protection(SelectedRunEvent((RunEvent((replaced, other), (1, 1)),), 1.0, 0.5))
