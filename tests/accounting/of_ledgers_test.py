"""tfdp.accounting.of_ledgers: what a ledger finds when it asks what it costs."""

import dp_accounting
import pytest

from tfdp.accounting import RDPAccountant, of_ledgers
from tfdp.accounting.dp_events import to_dp_event
from tfdp.events import GaussianSumEvent, NeighboringRelation, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger

STEP = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 1.1))
RELATIONS = dp_accounting.NeighboringRelation


def _ledger(event=STEP, count=10_000):
    ledger = PrivacyLedger()
    if count:
        ledger.append(event, count)
    return ledger


def test_an_accountant_of_dp_accounting_gets_the_whole_ledger():
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=RELATIONS.ADD_OR_REMOVE_ONE)
    assert of_ledgers.compose_dp_event(_ledger(), accountant) is accountant
    ours = _ledger().replay(RDPAccountant()).get_epsilon(1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-3)


def test_an_accountant_for_another_relation_is_refused():
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=RELATIONS.REPLACE_ONE)
    with pytest.raises(ValueError, match="are under ADD_OR_REMOVE_ONE, the accountant is for"):
        of_ledgers.compose_dp_event(_ledger(), accountant)
    zero_out = SampledEvent(STEP.sampling, STEP.event, NeighboringRelation.ZERO_OUT)
    with pytest.raises(ValueError, match="are under ZERO_OUT"):
        of_ledgers.compose_dp_event(_ledger(zero_out), accountant)


def test_an_empty_ledger_is_about_no_relation():
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=RELATIONS.REPLACE_ONE)
    of_ledgers.compose_dp_event(_ledger(count=0), accountant)
    assert accountant.get_epsilon(1e-5) == 0


def test_a_ledgers_methods_are_these_functions():
    ledger = _ledger()
    assert ledger.to_dp_event() == to_dp_event(ledger) == of_ledgers.to_dp_event(ledger)
    assert ledger.remaining(3.0, 1e-5) == of_ledgers.remaining(ledger, 3.0, 1e-5)
