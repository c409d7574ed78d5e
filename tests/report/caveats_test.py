"""A caveat stands in the report exactly where the ledger implies it."""

import dataclasses

import pytest

from tfdp.events import (
    ComposedEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    UnknownSampling,
)
from tfdp.ledger import PrivacyLedger
from tfdp.report import gather
from tfdp.report.caveats import ATTENTION, FATAL, SCOPE

SUM = GaussianSumEvent(1.0, 2.0)
STEP = SampledEvent(PoissonSampling(0.01, 10_000), SUM)
ALWAYS = {
    "Tuning is not accounted",
    "Metrics are not in the ledger",
    "The ledger is taken at its word",
    "Random numbers and arithmetic",
}
USUAL = ALWAYS | {
    "The guarantee is about one example",
    "Random sampling is taken at its word",
    "The number of units is public",
}


def facts_of(*events, delta=None):
    ledger = PrivacyLedger()
    for event in events:
        ledger.append(event, 2)
    return gather(ledger, delta, ["rdp"])


def like_step(**changes):
    return dataclasses.replace(STEP, **changes)


def test_ordinary_ledger_has_the_usual_ones():
    found = facts_of(STEP).caveats
    assert {caveat.title for caveat in found} == USUAL
    assert {caveat.level for caveat in found} == {SCOPE}


CASES = {
    "seeded": (like_step(event=GaussianSumEvent(1.0, 2.0, seeded=True)), "Seeded noise", FATAL),
    "silent": (like_step(event=GaussianSumEvent(1.0, 0.0)), "No noise", FATAL),
    "inner": (
        like_step(event=ComposedEvent((SUM, NonPrivateEvent()))),
        "Released without protection",
        FATAL,
    ),
    "unknown": (
        SampledEvent(UnknownSampling(), SUM, NeighboringRelation.ADD_OR_REMOVE_ONE),
        "Unknown sampling",
        ATTENTION,
    ),
    "bare": (SUM, "No sampling and no unit declared", ATTENTION),
    "zero_out": (
        like_step(neighboring_relation=NeighboringRelation.ZERO_OUT),
        "Zero-out neighbours",
        SCOPE,
    ),
    "replace": (
        SampledEvent(FixedSizeSampling(1, 10_000), SUM, NeighboringRelation.REPLACE_ONE),
        "Replace-one neighbours",
        SCOPE,
    ),
    "shuffled": (SampledEvent(ShuffledSampling(10, 10_000), SUM), "Passes over the data", SCOPE),
    "microbatch": (
        like_step(privacy_unit="microbatch"),
        "The guarantee is about one microbatch",
        SCOPE,
    ),
    "no_population": (like_step(sampling=PoissonSampling(0.01)), "Unknown population", ATTENTION),
    "weak": (
        SampledEvent(FullBatchSampling(10_000), GaussianSumEvent(1.0, 0.2)),
        "The bound rules out little",
        ATTENTION,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_this_ledger_implies(name):
    event, title, level = CASES[name]
    assert title not in USUAL
    (caveat,) = [caveat for caveat in facts_of(event).caveats if caveat.title == title]
    assert caveat.level == level
    assert caveat.steps in (None, 2)


def test_bounds_that_were_drawn_are_not_certain():
    ledger = PrivacyLedger()
    ledger.append(SUM)
    found = [c for c in gather(ledger, 1e-3, ["monte_carlo"]).caveats if "not certain" in c.title]
    assert [c.level for c in found] == [ATTENTION]
    assert "upper bounds with probability 0.999999, and not with certainty" in found[0].text
    assert not any("certain" in c.title for c in gather(ledger, 1e-3, ["prv"]).caveats)


def test_steps_of_a_caveat_are_counted():
    found = facts_of(STEP, CASES["seeded"][0], STEP).caveats
    assert found[0].title == "Seeded noise" and found[0].steps == 2


def test_gravest_come_first():
    levels = [c.level for c in facts_of(CASES["seeded"][0], CASES["bare"][0]).caveats]
    assert levels == sorted(levels, key=[FATAL, ATTENTION, SCOPE].index)
    assert set(levels) == {FATAL, ATTENTION, SCOPE}


def test_user_is_the_unit_that_needs_no_warning():
    titles = {caveat.title for caveat in facts_of(like_step(privacy_unit="user")).caveats}
    assert titles == USUAL - {"The guarantee is about one example"}


@pytest.mark.parametrize(("delta", "large"), [(1e-4, True), (9e-5, False)])
def test_delta_of_one_in_the_population_is_too_large(delta, large):
    titles = {caveat.title for caveat in facts_of(STEP, delta=delta).caveats}
    assert ("δ is too large" in titles) == large


def test_different_units_are_named():
    found = facts_of(STEP, like_step(privacy_unit="user")).caveats
    (caveat,) = [c for c in found if c.title == "Different guarantees in one ledger"]
    assert "example, user" in caveat.text
