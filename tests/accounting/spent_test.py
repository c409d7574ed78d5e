"""Spent is a replay that does not start from the beginning."""

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import RDPAccountant
from tfdp.accounting.spent import Spent
from tfdp.events import (
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger

DELTA = 1e-5
EVENTS = [SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, z)) for z in (2.0, 3.0, 4.0)]


class Counting(RDPAccountant):
    composed = 0

    def __init__(self):
        super().__init__([2, 4, 8])

    def compose(self, event, count=1):
        Counting.composed += 1
        return super().compose(event, count)


def replayed(ledger):
    return ledger.replay(RDPAccountant([2, 4, 8])).get_epsilon(DELTA)


@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4), max_size=6))
def test_is_a_replay_of_the_whole_ledger_whenever_it_is_asked(growth):
    ledger, spent = PrivacyLedger(), Spent(Counting)
    for appended in growth:
        for which, count in appended:
            ledger.append(EVENTS[which], count)
        assert spent.epsilon(ledger, DELTA) == replayed(ledger)


def test_composes_only_what_is_new():
    ledger, spent = PrivacyLedger(), Spent(Counting)
    for i in range(300):
        ledger.append(EVENTS[i % 3])
    spent.epsilon(ledger, DELTA)
    before = Counting.composed
    spent.epsilon(ledger, DELTA)
    assert Counting.composed == before
    ledger.append(EVENTS[299 % 3], 7)  # The last entry grows.
    ledger.append(EVENTS[0])
    assert spent.epsilon(ledger, DELTA) == replayed(ledger)
    assert Counting.composed == before + 2


def test_another_ledger_is_replayed_from_its_beginning():
    one, other, spent = PrivacyLedger(), PrivacyLedger(), Spent(Counting)
    one.append(EVENTS[0], 5)
    other.append(EVENTS[1], 9)
    for ledger in (one, other, one, PrivacyLedger()):
        assert spent.epsilon(ledger, DELTA) == replayed(ledger)


def test_nothing_is_kept_of_a_refused_event():
    ledger, spent = PrivacyLedger(), Spent(Counting)
    ledger.append(EVENTS[0], 5)
    spent.epsilon(ledger, DELTA)
    ledger.append(EVENTS[1])
    ledger.append(SampledEvent(FullBatchSampling(), GaussianSumEvent(1, 1), privacy_unit="user"))
    for _ in range(2):  # A second question does not find a half-composed answer.
        with pytest.raises(UnsupportedEventError, match="user"):
            spent.epsilon(ledger, DELTA)


def test_accountants_of_dp_accounting_replay():
    def theirs():
        return dp_accounting.rdp.RdpAccountant([2, 4, 8])

    ledger, spent = PrivacyLedger(), Spent(theirs)
    for event in EVENTS:
        ledger.append(event, 3)
        assert spent.epsilon(ledger, DELTA) == ledger.replay(theirs()).get_epsilon(DELTA)


def test_accountants_of_dp_accounting_replay_under_the_relation_of_the_ledger():
    sampling, relation = FullBatchSampling(), NeighboringRelation.REPLACE_ONE
    ledger, spent = PrivacyLedger(), Spent("dp_accounting.rdp")
    ledger.append(SampledEvent(sampling, GaussianSumEvent(1.0, 8.0), relation), 3)
    assert spent.epsilon(ledger, DELTA) == ledger.epsilon(DELTA, "dp_accounting.rdp")
