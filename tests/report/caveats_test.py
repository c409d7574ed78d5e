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
    ParallelComposition,
    PoissonSampling,
    RandomizedResponseEvent,
    RunEvent,
    SampledEvent,
    SelectedRunEvent,
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


def search(*steps):
    """Returns the best of runs of these steps."""
    return SelectedRunEvent((RunEvent(steps, (10,) * len(steps)),), 1.0, 0.1)


SEEDED = GaussianSumEvent(1.0, 2.0, seeded=True)
CASES |= {
    "seeded_in_a_search": (search(like_step(event=SEEDED)), "Seeded noise", FATAL),
    "silent_in_a_search": (
        search(STEP, like_step(event=GaussianSumEvent(1.0, 0.0))),
        "No noise",
        FATAL,
    ),
    "seeded_part": (like_step(event=ParallelComposition((SUM, SEEDED))), "Seeded noise", FATAL),
    "unprotected_part": (
        like_step(event=ParallelComposition((SUM, NonPrivateEvent()))),
        "Released without protection",
        FATAL,
    ),
    "next_to_no_noise": (like_step(event=GaussianSumEvent(1.0, 1e-300)), "No noise", FATAL),
    "no_random_reports": (
        SampledEvent(
            FullBatchSampling(), RandomizedResponseEvent(0.0, 4), NeighboringRelation.REPLACE_ONE
        ),
        "No noise",
        FATAL,
    ),
    "unknown_in_a_search": (
        search(SampledEvent(UnknownSampling(), SUM, NeighboringRelation.ADD_OR_REMOVE_ONE)),
        "Unknown sampling",
        ATTENTION,
    ),
    "bare_in_a_search": (search(STEP, SUM), "No sampling and no unit declared", ATTENTION),
    "shuffled_in_a_search": (
        search(SampledEvent(ShuffledSampling(10, 10_000), SUM)),
        "Passes over the data",
        SCOPE,
    ),
}


UNIT = "The guarantee is about one example"
RANDOM = "Random sampling is taken at its word"
PUBLIC = "The number of units is public"
UNKNOWN = "Unknown population"
WEAK = "The bound rules out little"
# What else is, or is not, among the usual ones.
ALSO = {
    "unknown": {UNKNOWN},
    "bare": {UNKNOWN},
    "no_random_reports": {UNKNOWN, "Replace-one neighbours"},
    "unknown_in_a_search": {UNKNOWN, WEAK},
    "bare_in_a_search": {WEAK},
    "shuffled_in_a_search": {WEAK},
}
MISSING = {
    "unknown": {RANDOM, PUBLIC},
    "bare": {UNIT, RANDOM, PUBLIC},
    "shuffled": {RANDOM},
    "microbatch": {UNIT},
    "no_population": {PUBLIC},
    "weak": {RANDOM},
    "no_random_reports": {RANDOM, PUBLIC},
    "unknown_in_a_search": {RANDOM, PUBLIC},
    "shuffled_in_a_search": {RANDOM},
}


@pytest.mark.parametrize("name", CASES)
def test_what_this_ledger_implies(name):
    event, title, level = CASES[name]
    assert title not in USUAL
    found = facts_of(event).caveats
    (caveat,) = [caveat for caveat in found if caveat.title == title]
    assert caveat.level == level
    assert caveat.steps in (None, 2)
    expected = (USUAL | {title} | ALSO.get(name, set())) - MISSING.get(name, set())
    assert sorted(caveat.title for caveat in found) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("silent", "the noise was zero"),
        ("next_to_no_noise", "the noise was zero"),
        ("no_random_reports", "the responses were not randomized"),
    ],
)
def test_why_nothing_hides_the_data(name, why):
    (caveat,) = [c for c in facts_of(CASES[name][0]).caveats if c.title == "No noise"]
    assert caveat.text == f"Nothing hides the data: {why}."


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


def test_a_search_is_what_its_runs_are():
    facts = facts_of(search(STEP))
    assert {caveat.title for caveat in facts.caveats} == USUAL
    assert facts.costs.target_delta == 1e-5
    assert "population of 10,000" in facts.delta_reason


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2] == FATAL])
def test_what_no_delta_helps_is_said_so(name):
    summary = facts_of(CASES[name][0]).summary
    assert summary.verdict == "No privacy guarantee: ε is infinite"
    assert not any("larger δ" in sentence for sentence in summary.sentences)
