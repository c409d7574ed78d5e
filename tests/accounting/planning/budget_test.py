"""What is left of a budget: as much as fits, and not one event more."""

import pytest

from tfdp.accounting import PLDAccountant, RDPAccountant
from tfdp.accounting.planning.budget import MOST_EVENTS, Remaining, affordable_events
from tfdp.events import GaussianSumEvent, NonPrivateEvent, PoissonSampling, SampledEvent
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


def test_free_events_are_counted_to_the_end():
    free = GaussianSumEvent(1.0, 1e15)
    assert affordable_events(PrivacyLedger(), free, 1.0, 1e-5) == MOST_EVENTS


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (float("inf"), 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_targets_out_of_range(epsilon, delta):
    with pytest.raises(ValueError, match="target_"):
        PrivacyLedger().remaining(epsilon, delta)
