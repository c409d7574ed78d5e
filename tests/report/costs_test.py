"""Every accountant is heard, and only upper bounds are relied on."""

import math

import dp_accounting
import pytest

from tfdp.accounting import make_accountant, registry
from tfdp.events import (
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger
from tfdp.report import costs

DELTA = 1e-5
STEP = SampledEvent(PoissonSampling(0.02, 10_000), GaussianSumEvent(1.0, 2.0))


def ledger_of(*pairs):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return ledger


class Says:
    """An accountant that says this of everything, or raises it."""

    def __init__(self, answer, when_composed=False):
        self._answer, self._when_composed = answer, when_composed

    def __call__(self, relation):
        return self

    def compose(self, event, count=1):
        if self._when_composed:
            raise self._answer
        return self

    def get_epsilon(self, target_delta):
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_every_accountant_with_proven_bounds_is_asked():
    found = costs.compute(ledger_of((STEP, 100)), DELTA)
    names = [cost.name for cost in found.costs]
    assert names == [name for name in registry.ACCOUNTANTS if name != "monte_carlo"]
    assert all(cost.kind for cost in found.costs)


def test_bounds_that_are_drawn_say_with_which_probability_they_hold():
    found = costs.compute(ledger_of((GaussianSumEvent(1.0, 2.0), 2)), 1e-3, ["monte_carlo", "prv"])
    drawn, proven = found.costs
    assert drawn.confidence == 1 - 1e-6 and proven.confidence is None
    assert proven.epsilons[found.target] < drawn.epsilons[found.target] < math.inf
    assert found.headline is proven
    # Of few draws nothing follows for a small delta, and no curve is drawn.
    alone = costs.compute(ledger_of((GaussianSumEvent(1.0, 2.0), 2)), 1e-3, ["monte_carlo"])
    assert alone.headline.curve is None and alone.headline.epsilons[-1] == math.inf


def test_epsilons_are_those_of_a_replay():
    ledger = ledger_of((STEP, 100))
    found = costs.compute(ledger, 3e-6, ["rdp", "pld"])
    assert list(found.deltas) == sorted(found.deltas, reverse=True)
    assert found.target_delta == 3e-6
    for cost in found.costs:
        replayed = ledger.replay(make_accountant(cost.name))
        assert cost.epsilons == tuple(replayed.get_epsilon(delta) for delta in found.deltas)
        assert cost.profile is not None
    assert found.headline.name == "pld"
    assert found.epsilon == found.costs[1].epsilons[found.target] < found.costs[0].epsilons[2]


@pytest.mark.parametrize(
    ("says", "text"),
    [
        (Says(UnsupportedEventError("no <b>such</b> event"), True), "no <b>such</b> event"),
        (Says(dp_accounting.UnsupportedEventError("not this"), True), "not this"),
        (Says(ValueError("too\n  large")), "too large"),
        (Says(ModuleNotFoundError("install it"), True), "install it"),
        (Says(OverflowError()), "OverflowError"),
        (Says(math.nan), "magic returned nan"),
        (Says(-1.0), "magic returned -1"),
    ],
    ids=["unsupported", "theirs", "value", "missing", "overflow", "nan", "negative"],
)
def test_refusal_is_listed_with_its_reason(monkeypatch, says, text):
    monkeypatch.setitem(registry.ACCOUNTANTS, "magic", says)
    found = costs.compute(ledger_of((STEP, 3)), DELTA, ["magic", "rdp"])
    refused, fine = found.costs
    assert (refused.name, refused.epsilons) == ("magic", ())
    assert refused.refusal.startswith(text)
    assert fine.refusal is None
    assert found.headline is fine and fine.name == "rdp"


def test_reason_does_not_repeat_what_the_report_shows(monkeypatch):
    other = SampledEvent(FullBatchSampling(10_000), GaussianSumEvent(1.0, 9.0))
    for text, reason in {
        f"No price of this event: {other!r}": "No price of this event",
        f"{STEP!r} has no price.": "an event of the ledger has no price.",
        "x" * 400: "x" * 400,
        "x" * 401: "x" * 400 + "…",
    }.items():
        monkeypatch.setitem(registry.ACCOUNTANTS, "magic", Says(UnsupportedEventError(text)))
        (refused,) = costs.compute(ledger_of((STEP, 3), (other, 1)), DELTA, ["magic"]).costs
        assert refused.refusal == reason


def test_error_of_a_broken_accountant_is_not_hidden(monkeypatch):
    monkeypatch.setitem(registry.ACCOUNTANTS, "magic", Says(AttributeError("a bug")))
    with pytest.raises(AttributeError, match="a bug"):
        costs.compute(ledger_of((STEP, 3)), DELTA, ["magic"])


def test_what_is_not_known_to_be_an_upper_bound_is_never_the_headline(monkeypatch):
    monkeypatch.setitem(registry.ACCOUNTANTS, "optimist", Says(0.001))
    found = costs.compute(ledger_of((STEP, 3)), DELTA, ["optimist", "rdp"])
    assert found.headline.name == "rdp"
    assert found.costs[0].epsilons == (0.001,) * len(found.deltas)
    assert found.costs[0].curve is None and found.costs[0].profile is None
    assert costs.compute(ledger_of((STEP, 3)), DELTA, ["optimist"]).headline is None


def test_different_units_have_no_headline():
    other = SampledEvent(FullBatchSampling(10_000), GaussianSumEvent(1.0, 9.0), privacy_unit="user")
    found = costs.compute(ledger_of((STEP, 3), (other, 1)), DELTA, ["rdp", "pld"])
    assert found.headline is None and found.epsilon == math.inf
    for cost in found.costs:
        assert "common epsilon" in cost.refusal


def test_unknown_accountant_is_an_error():
    with pytest.raises(ValueError, match="'magic'"):
        costs.compute(ledger_of((STEP, 3)), DELTA, ["rdp", "magic"])


@pytest.mark.parametrize(
    "pairs",
    [
        [(STEP, 1)],
        [(STEP, 7), (SampledEvent(FullBatchSampling(10_000), GaussianSumEvent(1.0, 9.0)), 2)],
        [
            (SampledEvent(ShuffledSampling(10, 100, i), GaussianSumEvent(1.0, 9.0)), 10)
            for i in range(30)
        ],
    ],
    ids=["one", "mixed", "passes"],
)
def test_curve_is_the_cost_of_the_first_steps(pairs):
    ledger = ledger_of(*pairs)
    found = costs.compute(ledger, DELTA, ["rdp"])
    (cost,) = found.costs
    events = [event for event, count in ledger for _ in range(count)]
    assert found.steps[0] == 1 and found.steps[-1] == len(events)
    assert len(cost.curve) == len(found.steps)
    for steps, epsilon in zip(found.steps, cost.curve, strict=True):
        accountant = make_accountant("rdp")
        for event in events[:steps]:
            accountant.compose(event)
        assert epsilon == accountant.get_epsilon(DELTA)
    assert list(cost.curve) == sorted(cost.curve)
    assert cost.curve[-1] == cost.epsilons[found.target]


def test_empty_ledger_costs_nothing():
    found = costs.compute(PrivacyLedger(), DELTA, ["rdp", "pld"])
    assert found.epsilon == 0 and found.steps == ()


def many_kinds(count):
    return ledger_of(
        *(
            (SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 1 + i / count)), 1)
            for i in range(count)
        )
    )


def test_ledger_of_many_kinds_is_charged_a_little_more_by_accountants_that_are_slow():
    ledger = many_kinds(20)
    found = costs.compute(ledger, DELTA)
    by_name = {cost.name: cost for cost in found.costs}
    assert by_name["rdp"].epsilons[found.target] == ledger.epsilon(DELTA, "rdp")
    assert "digits" not in by_name["rdp"].kind
    exact = ledger.epsilon(DELTA, "prv")
    assert exact < by_name["prv"].epsilons[found.target] < 1.2 * exact
    assert "charged with 2 digits, rounded towards more cost" in by_name["prv"].kind
    assert found.headline.curve[-1] == found.epsilon


def test_accountants_that_are_slow_are_not_asked_about_kinds_that_cannot_be_rounded():
    ledger = ledger_of(*((LaplaceSumEvent(1.0, 5 + i / 40), 1) for i in range(13)))
    found = costs.compute(ledger, DELTA, ["prv", "pld", "rdp"])
    prv, pld, rdp = found.costs
    assert prv.refusal == pld.refusal == "Not asked: the ledger holds more than 12 kinds of steps."
    assert found.headline.name == "rdp" and rdp.epsilons[found.target] > 0
