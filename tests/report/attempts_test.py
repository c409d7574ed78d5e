"""Attacks beside what a ledger allows."""

import types

import numpy as np
import pytest

from tfdp.audit import attack
from tfdp.events import GaussianSumEvent
from tfdp.ledger import PrivacyLedger
from tfdp.report import attempts, costs

MEMBERS = np.arange(400) % 2 == 0


def _costs(*events):
    ledger = PrivacyLedger()
    for event in events:
        ledger.append(event)
    return costs.compute(ledger, 1e-5, ["rdp"])


def test_what_is_allowed_is_the_bound_of_the_ledger():
    found = attack("score", np.where(MEMBERS, 3.0, 0.0), MEMBERS)
    price = _costs(GaussianSumEvent(1.0, 10.0))
    (attempt,) = attempts.attempts_at([found], price)
    claim = price.headline.profile.true_positive_rate
    assert attempt.allowed == {0.001: claim(0.001), 0.01: claim(0.01)}
    assert attempt.above == tuple(found.above_the_bound(claim)) and len(attempt.above) == 3
    assert attempt.verdict == "above what is claimed"
    assert attempt.allowed_advantage == price.headline.profile.advantage


def test_several_attacks_are_judged_together():
    rng = np.random.default_rng(0)
    attacks = [attack("score", rng.random(400) + 0.4 * MEMBERS, MEMBERS) for _ in range(3)]
    price = _costs(GaussianSumEvent(1.0, 10.0))
    claim = price.headline.profile.true_positive_rate
    found = attempts.attempts_at(attacks, price)
    together = [tuple(each.above_the_bound(claim, 3)) for each in attacks]
    assert [attempt.above for attempt in found] == together
    assert together != [tuple(each.above_the_bound(claim)) for each in attacks]


def test_nothing_is_allowed_or_exceeded_where_nothing_is_bounded():
    found = attack("score", np.where(MEMBERS, 3.0, 0.0), MEMBERS)
    (attempt,) = attempts.attempts_at([found], _costs(GaussianSumEvent(1.0, 0.0)))
    assert set(attempt.allowed.values()) == {1.0} and attempt.above == ()
    (attempt,) = attempts.attempts_at([found], types.SimpleNamespace(headline=None))
    assert attempt.allowed is None and attempt.above == ()
    assert attempt.verdict == "the ledger claims nothing" and attempt.allowed_advantage is None


def test_attacks_of_one_report_are_about_the_same_rates():
    scores, members = np.arange(40.0), np.arange(40) % 2 == 0
    nothing = _costs()
    for other in ({"confidence": 0.9}, {"false_positive_rates": (0.1,)}):
        both = [attack("a", scores, members), attack("b", scores, members, **other)]
        with pytest.raises(ValueError, match="same false positive rates and confidence"):
            attempts.attempts_at(both, nothing)
