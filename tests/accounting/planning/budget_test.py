"""What is left of a budget: as much as fits, and not one event more."""

import math

import pytest

from tfdp.accounting import Accountant, PLDAccountant, RDPAccountant
from tfdp.accounting.mechanisms import PureEpsilon
from tfdp.accounting.planning.budget import (
    MOST_EVENTS,
    Budget,
    PrivacyBudgetExceededError,
    Remaining,
    affordable_events,
    check_price,
)
from tfdp.events import (
    CorrelatedGaussianSumEvent,
    FullBatchSampling,
    GaussianSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    PureEpsilonEvent,
    RandomAllocationSampling,
    SampledEvent,
    ShuffledSampling,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger

STEP = SampledEvent(PoissonSampling(0.01, 60_000), GaussianSumEvent(1.0, 1.1))
OTHER = SampledEvent(PoissonSampling(0.02, 60_000), GaussianSumEvent(1.0, 1.1))


def ledger_of(*pairs):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return ledger


def epsilon(accountant, *pairs):
    return ledger_of(*pairs).replay(accountant()).get_epsilon(1e-5)


@pytest.mark.parametrize("accountant", [RDPAccountant, PLDAccountant])
@pytest.mark.parametrize("event", [STEP, OTHER])
def test_one_more_would_be_too_many(accountant, event):
    ledger = ledger_of((STEP, 100))
    left = ledger.remaining(1.5, 1e-5, event=event, accountant=accountant)
    assert epsilon(accountant, (STEP, 100), (event, left.events)) <= 1.5
    assert epsilon(accountant, (STEP, 100), (event, left.events + 1)) > 1.5
    assert left.epsilon == pytest.approx(1.5 - epsilon(accountant, (STEP, 100)), rel=1e-12)


def test_last_event_is_the_default():
    left = ledger_of((STEP, 100), (OTHER, 1)).remaining(1.5, 1e-5)
    assert left == ledger_of((STEP, 100), (OTHER, 1)).remaining(1.5, 1e-5, event=OTHER)


def test_nothing_is_left():
    assert ledger_of((STEP, 10**5)).remaining(1.0, 1e-5) == Remaining(0.0, 0)
    assert ledger_of((NonPrivateEvent(), 1)).remaining(1.0, 1e-5, event=STEP) == Remaining(0.0, 0)
    assert ledger_of((STEP, 1)).remaining(3.0, 1e-5, event=NonPrivateEvent()).events == 0


def test_empty_ledger():
    assert PrivacyLedger().remaining(1.0, 1e-5) == Remaining(1.0, None)


def test_last_step_that_cannot_happen_again():
    release = CorrelatedGaussianSumEvent(1.0, 4.0, (1.0, 0.5), (1.0,), 40, 1, 0, 7)
    step = SampledEvent(MinSeparationSampling(0.1, 4, 40), release, NeighboringRelation.ZERO_OUT)
    ledger = ledger_of((step, 1))
    left = ledger.remaining(30.0, 1e-5)
    assert left == Remaining(30.0 - ledger.epsilon(1e-5), None) and left.epsilon > 0
    with pytest.raises(UnsupportedEventError, match="samples of one pass"):
        ledger.remaining(30.0, 1e-5, event=step)


def test_free_events_are_counted_to_the_end():
    free = GaussianSumEvent(1.0, 1e15)
    assert affordable_events(PrivacyLedger(), free, 1.0, 1e-5) == MOST_EVENTS


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (float("inf"), 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_targets_out_of_range(epsilon, delta):
    with pytest.raises(ValueError, match="target_"):
        PrivacyLedger().remaining(epsilon, delta)
    with pytest.raises(ValueError, match="target_"):
        Budget(epsilon, delta)


def test_what_is_left_is_what_the_ledger_does_not_cost():
    ledger = ledger_of((STEP, 100))
    spent = ledger.epsilon(1e-5)
    assert Budget(1.5, 1e-5).left(PrivacyLedger()) == 1.5
    assert Budget(1.5, 1e-5).left(ledger) == pytest.approx(1.5 - spent, rel=1e-12)
    assert Budget(spent * 0.9, 1e-5).left(ledger) == 0.0


def _of_a_pass(sampling, stddev):
    return SampledEvent(sampling, GaussianSumEvent(1.0, stddev))


@pytest.mark.parametrize("name", ["rdp", "prv", "dp_accounting.rdp"])
@pytest.mark.parametrize(
    "sampling", [RandomAllocationSampling(5, 1, 1000), ShuffledSampling(200, 1000)], ids=str
)
def test_a_step_of_a_begun_pass_is_asked_for_as_it_is_charged(name, sampling):
    ledger = ledger_of((_of_a_pass(sampling, 8.0), 5))
    for step in (_of_a_pass(sampling, 1.0), _of_a_pass(sampling, 8.0)):
        after = ledger_of(*ledger, (step, 1)).epsilon(1e-5, name)
        Budget(after, 1e-5, name).permit(ledger, step)
        with pytest.raises(PrivacyBudgetExceededError):
            Budget(after * 0.999, 1e-5, name).permit(ledger, step)
        assert affordable_events(ledger, step, after, 1e-5, name) >= 1
        assert affordable_events(ledger, step, after * 0.999, 1e-5, name) == 0


def test_the_next_step_of_a_run_has_a_price():
    def step(position):
        release = CorrelatedGaussianSumEvent(1.0, 2.0, (1.0, 0.5), (1.0,), 20, 2, position, 7)
        return SampledEvent(MinSeparationSampling(0.1, 4, 20, 1000), release)

    ledger = ledger_of(*((step(i), 1) for i in range(10)))
    check_price(ledger, step(10), "rdp")


@pytest.mark.parametrize("name", ["rdp", "dp_accounting.rdp"])
def test_events_of_other_relations_are_priced_under_the_one_that_all_cover(name):
    events = [
        SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 4.0), relation)
        for relation in NeighboringRelation
    ]
    ledger = ledger_of((events[0], 2))
    for event in events:
        check_price(ledger, event, name)
        assert affordable_events(ledger, event, 20.0, 1e-5, name) > 0
    assert Budget(20.0, 1e-5, name).permit(PrivacyLedger(), events[1]) == 1


def test_a_refusal_promises_no_more_than_is_left():
    ledger = ledger_of((_of_a_pass(PoissonSampling(0.01), 1.0), 100))
    left = Budget(5.0, 1.0000004e-5).left(ledger)
    with pytest.raises(PrivacyBudgetExceededError, match=r"at delta 1\.0000004e-05") as raised:
        Budget(5.0, 1.0000004e-5).permit(ledger, GaussianSumEvent(1.0, 0.1))
    assert (
        left * 0.9999
        < float(str(raised.value).split("left is epsilon ")[1].split()[0][:-1])
        <= left
    )


class _LostItsWay(Accountant):
    """An accountant of another package, whose arithmetic ends in what is no number."""

    prices = {PureEpsilon: lambda mechanism: mechanism.epsilon}

    def _epsilon(self, delta):
        return math.nan


class _OfNoKind:
    """Another one, which is not derived from ours."""

    def compose(self, event, count=1):
        return self

    def get_epsilon(self, target_delta):
        return math.nan


@pytest.mark.parametrize("accountant", [_LostItsWay, _OfNoKind])
def test_what_is_no_number_fits_into_no_budget(accountant):
    ledger, budget = PrivacyLedger(), Budget(10.0, 1e-5, accountant)
    with pytest.raises(PrivacyBudgetExceededError):
        ledger.append(PureEpsilonEvent(20.0), permit=budget.permit)
    assert len(ledger) == 0
    assert affordable_events(ledger, PureEpsilonEvent(20.0), 10.0, 1e-5, accountant) == 0


def test_an_accountant_that_has_no_number_says_infinity():
    ledger = PrivacyLedger()
    ledger.append(PureEpsilonEvent(1.0))
    assert ledger.epsilon(1e-5, _LostItsWay) == math.inf
