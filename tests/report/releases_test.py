"""The rows of a report hold every step of the ledger, once."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting.normal_form import effective_noise_multiplier
from tfdp.events import (
    ComposedEvent,
    FixedSizeSampling,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    ParallelComposition,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    ShuffledSampling,
    UnknownSampling,
)
from tfdp.ledger import PrivacyLedger
from tfdp.report.releases import MOST_ROWS, Range, alike_steps

STEP = SampledEvent(PoissonSampling(0.01, 1000), GaussianSumEvent(1.0, 2.0))


def ledger_of(*pairs):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return ledger


def test_equal_steps_are_one_row_wherever_they_stand():
    other = dataclasses.replace(STEP, event=GaussianSumEvent(1.0, 3.0))
    first, second = alike_steps(ledger_of((STEP, 3), (other, 2), (STEP, 4)))
    assert (first.steps, second.steps) == (7, 2)
    assert first.sampling is PoissonSampling
    assert first.sampling_fields == {
        "sampling_probability": Range(0.01, 0.01, 1),
        "population_size": Range(1000, 1000, 1),
    }
    assert (first.unit, first.relation) == ("example", NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert first.noise_multiplier == Range(2.0, 2.0, 1)
    assert second.noise_multiplier == Range(3.0, 3.0, 1)


def test_every_group_of_a_step_is_there_in_order():
    groups = ComposedEvent(
        (GaussianSumEvent(3.0, 6.0), ComposedEvent((GaussianSumEvent(0.5, 1.0, seeded=True),)))
    )
    fixed = SampledEvent(FixedSizeSampling(10, 100), groups, privacy_unit="user")
    (row,) = alike_steps(ledger_of((fixed, 2)))
    assert [release.fields["l2_norm_bound"].low for release in row.releases] == [3.0, 0.5]
    assert [release.fields["noise_stddev"].low for release in row.releases] == [6.0, 1.0]
    assert [release.seeded for release in row.releases] == [False, True]
    assert [release.noise_multiplier.low for release in row.releases] == [2.0, 0.0]
    assert row.noise_multiplier == Range(0.0, 0.0, 1)


def test_bare_event_declares_nothing():
    (row,) = alike_steps(ledger_of((NonPrivateEvent(), 1)))
    assert (row.sampling, row.unit, row.sampling_fields) == (None, None, {})
    assert row.releases[0].kind is NonPrivateEvent
    assert row.releases[0].noise_multiplier is None


def test_what_sampling_leaves_open_is_none():
    unknown = SampledEvent(UnknownSampling(), GaussianSumEvent(1.0, 1.0))
    open_size = dataclasses.replace(STEP, sampling=PoissonSampling(0.01))
    first, second = alike_steps(ledger_of((unknown, 1), (open_size, 1)))
    assert first.sampling_fields == {}
    assert second.sampling_fields["population_size"] is None


def test_passes_are_counted_and_share_a_row():
    steps = [
        (SampledEvent(ShuffledSampling(10, 100, index), GaussianSumEvent(1.0, 1.0)), 10)
        for index in range(5)
    ]
    (row,) = alike_steps(ledger_of(*steps))
    assert (row.steps, row.passes, row.distinct) == (50, 5, 1)
    assert "pass_index" not in row.sampling_fields


def adaptive(number):
    return [
        (dataclasses.replace(STEP, event=GaussianSumEvent(1 + i / number, 2 * (1 + i / number))), 2)
        for i in range(number)
    ]


def test_few_different_steps_have_rows_of_their_own():
    assert len(alike_steps(ledger_of(*adaptive(MOST_ROWS)))) == MOST_ROWS


def test_many_different_steps_of_one_structure_share_a_row_of_ranges():
    number = MOST_ROWS + 1
    seeded = dataclasses.replace(STEP, event=GaussianSumEvent(1.0, 2.0, seeded=True))
    ledger = ledger_of(*adaptive(number), (seeded, 1))
    row, other = alike_steps(ledger)
    assert (row.steps, row.distinct) == (2 * number, number)
    assert row.releases[0].fields["l2_norm_bound"] == Range(1.0, 1 + (number - 1) / number, number)
    assert row.noise_multiplier.low <= 2 <= row.noise_multiplier.high
    assert other.releases[0].seeded  # Never hidden in a range.


_events = st.builds(
    SampledEvent,
    st.sampled_from([PoissonSampling(0.1), PoissonSampling(0.2, 5), UnknownSampling()])
    | st.builds(ShuffledSampling, st.just(2), st.just(8), st.integers(0, 3)),
    st.lists(st.builds(GaussianSumEvent, st.just(1.0), st.floats(0.5, 4)), max_size=2).map(
        lambda parts: ComposedEvent(tuple(parts))
    ),
    st.sampled_from([NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.ZERO_OUT]),
    st.sampled_from(["example", "user"]),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(_events, st.integers(1, 5)), max_size=30))
def test_rows_hold_every_step_once(pairs):
    ledger = ledger_of(*pairs)
    rows = alike_steps(ledger)
    assert sum(row.steps for row in rows) == ledger.total_count
    units = {event.privacy_unit for event, _ in ledger}
    for event, _ in ledger:
        # No epsilon is about several units; each row then keeps its own relation.
        relation = ledger.neighboring_relation if len(units) == 1 else event.neighboring_relation
        about = dataclasses.replace(event, neighboring_relation=relation)
        homes = [row for row in rows if _holds(row, about, effective_noise_multiplier(event))]
        assert homes


def _holds(row, event, z):
    if (row.sampling, row.relation, row.unit) != (
        type(event.sampling),
        event.neighboring_relation,
        event.privacy_unit,
    ) or len(row.releases) != len(event.event.events):
        return False
    parts = zip(row.releases, event.event.events, strict=True)
    inside = all(
        r.fields["noise_stddev"].low <= e.noise_stddev <= r.fields["noise_stddev"].high
        for r, e in parts
    )
    multiplier = row.noise_multiplier
    return inside and (multiplier is None or multiplier.low <= z <= multiplier.high)


def test_releases_about_disjoint_parts_are_one_release_that_says_so():
    parts = ParallelComposition((PureEpsilonEvent(0.5), GaussianSumEvent(1.0, 5.0)))
    (row,) = alike_steps(ledger_of((parts, 3)))
    (release,) = row.releases
    assert row.steps == 3 and release.kind is ParallelComposition
    assert release.kind.words == "releases about disjoint parts of the data"
    assert release.noise_multiplier is None and row.noise_multiplier is None
