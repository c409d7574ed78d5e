"""tfdp.ledger.PrivacyLedger: what was appended is what is saved, loaded, exported and replayed."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp
from tests.ledger import reading
from tests.ledger.making import A, B, ledger_of
from tests.ledger.strategies import ledger_events
from tfdp.events import (
    ComposedEvent,
    Event,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    SampledEvent,
    UnsupportedEventError,
)
from tfdp.events.protection import protection
from tfdp.ledger import (
    LedgerEntry,
    LedgerFormatError,
    PrivacyLedger,
)

ledgers = st.lists(st.tuples(ledger_events, st.integers(1, 10**6)), max_size=6)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.ledger"
    ledger_of((A, 3), (B, 2), (A, 1)).save(path)
    return path


def test_consecutive_equal_events_are_counted_once():
    ledger = ledger_of((A, 1), (A, 2), (B, 1), (A, np.int64(5)))
    assert list(ledger) == [LedgerEntry(A, 3), LedgerEntry(B, 1), LedgerEntry(A, 5)]
    assert len(ledger) == 3
    assert ledger.total_count == 9


def test_empty_ledger(tmp_path):
    ledger = PrivacyLedger()
    assert (len(ledger), ledger.total_count, ledger.neighboring_relation) == (0, 0, None)
    ledger.save(tmp_path / "empty")
    assert PrivacyLedger.load(tmp_path / "empty") == ledger


class _OtherEvent(Event):
    pass


@pytest.mark.parametrize(
    ("event", "count", "error"),
    [
        (A, 0, ValueError),
        (A, -1, ValueError),
        (A, 1.0, TypeError),
        (A, True, TypeError),
        (A, 2**63, ValueError),
        ("step", 1, TypeError),
        (_OtherEvent(), 1, UnsupportedEventError),
        (ComposedEvent((_OtherEvent(),)), 1, UnsupportedEventError),
    ],
)
def test_append_refuses_and_leaves_the_ledger_as_it_was(event, count, error):
    ledger = ledger_of((A, 1))
    with pytest.raises(error):
        ledger.append(event, count)
    assert list(ledger) == [LedgerEntry(A, 1)]
    assert ledger.total_count == 1


def test_equality_is_of_id_and_content():
    ledger = ledger_of((A, 1))
    copy = PrivacyLedger.from_json_lines(ledger.to_json_lines())
    assert copy == ledger
    copy.append(A)
    assert copy != ledger
    assert ledger_of((A, 1)) != ledger
    assert ledger != "ledger"


def test_neighboring_relation_is_one_that_all_events_are_priced_for():
    add, replace, zero = (
        SampledEvent(A.sampling, A.event, relation) for relation in NeighboringRelation
    )
    for event in (add, replace, zero):
        assert ledger_of((event, 1)).neighboring_relation is event.neighboring_relation
    for pair in ((add, replace), (replace, zero), (zero, add), (GaussianSumEvent(1.0, 1.0), zero)):
        ledger = ledger_of(*((event, 1) for event in pair))
        assert ledger.neighboring_relation is NeighboringRelation.ZERO_OUT
    user = SampledEvent(A.sampling, A.event, privacy_unit="user")
    with pytest.raises(UnsupportedEventError, match="'example'.*'user'"):
        _ = ledger_of((add, 1), (user, 1)).neighboring_relation


_KINDS = [
    A.event,
    *(
        SampledEvent(A.sampling, A.event, relation, unit)
        for relation in list(NeighboringRelation)[:2]
        for unit in ("example", "user")
    ),
]


@pytest.mark.parametrize("events", list(itertools.product(_KINDS, repeat=3)))
def test_what_would_leave_no_epsilon_is_refused_and_nothing_else(events):
    """Asked at every event, as at every step of a run, so that little of it is looked at anew."""
    ledger = PrivacyLedger()
    for number, event in enumerate(events, 1):
        anew = ledger_of(*((each, 1) for each in events[:number]))
        try:
            expected = anew.neighboring_relation
        except UnsupportedEventError:
            for _ in range(2):
                with pytest.raises(UnsupportedEventError, match="Keep a ledger for each"):
                    ledger.append(event, permit=PrivacyLedger.check_unit)
            assert ledger.total_count == number - 1
            ledger.append(event)  # A ledger holds whatever happened.
            for _ in range(2):
                with pytest.raises(UnsupportedEventError, match="Keep a ledger for each"):
                    ledger.check_unit(A.event)
            return
        ledger.append(event, permit=PrivacyLedger.check_unit)
        assert ledger.neighboring_relation is copy.copy(ledger).neighboring_relation is expected


def test_a_check_of_units_looks_at_new_events_only(monkeypatch):
    looked = []
    monkeypatch.setattr(
        tfdp.ledger.ledger, "protection", lambda event: looked.append(event) or protection(event)
    )
    ledger, events = PrivacyLedger(), [GaussianSumEvent(1.0, z) for z in range(1, 101)]
    for event in events:
        ledger.append(event, permit=PrivacyLedger.check_unit)
    # Each when it comes, and when the next one does.
    assert len(looked) == 2 * len(events) - 1


def test_events_that_are_read_anew_meanwhile_are_looked_at(monkeypatch):
    """Another thread takes over what another process has written, as a `DurableLedger` does."""
    user = SampledEvent(A.sampling, A.event, NeighboringRelation.REPLACE_ONE, "user")
    ledger, anew = ledger_of((A.event, 1), (B, 1)), ledger_of((user, 1), (A.event, 1))
    expected = anew.neighboring_relation

    def look(event):
        vars(ledger).update(vars(anew))
        return protection(event)

    monkeypatch.setattr(tfdp.ledger.ledger, "protection", look)
    _ = ledger.neighboring_relation
    monkeypatch.undo()
    assert ledger.neighboring_relation is expected
    with pytest.raises(UnsupportedEventError):
        ledger.check_unit(SampledEvent(A.sampling, A.event, privacy_unit="example"))


def _grown(ledger, *pairs):
    copy = PrivacyLedger.from_json_lines(ledger.to_json_lines())
    for event, count in pairs:
        copy.append(event, count)
    return copy


@pytest.mark.parametrize("more", [(), ((B, 1),), ((B, 1), (A, 4)), ((A, 1),)])
def test_is_prefix_of_what_grew_from_it(more):
    ledger = ledger_of((A, 2), (B, 3))
    assert ledger.is_prefix_of(_grown(ledger, *more))
    assert _grown(ledger, *more).is_prefix_of(ledger) == (not more)


def test_is_not_prefix_of_another_history():
    ledger = ledger_of((A, 2))
    left, right = _grown(ledger, (B, 1)), _grown(ledger, (A, 1), (B, 1))
    assert not left.is_prefix_of(right)
    assert not right.is_prefix_of(left)
    assert not ledger_of((A, 2)).is_prefix_of(ledger)


def test_empty_ledger_is_prefix_of_what_grew_from_it():
    ledger = PrivacyLedger()
    assert ledger.is_prefix_of(_grown(ledger, (A, 1)))
    assert not ledger.is_prefix_of(ledger_of((A, 1)))


def test_repr_is_short():
    ledger = ledger_of(*[(A, 1), (B, 1)] * 1000)
    assert repr(ledger) == f"PrivacyLedger({ledger.ledger_id}, entries=2000, total_count=2000)"


class _Recorder:
    def __init__(self):
        self.calls = []

    def compose(self, event, count):
        self.calls.append((event, count))


def test_replay_composes_every_entry_in_order_and_returns_the_accountant():
    recorder = _Recorder()
    assert ledger_of((A, 3), (B, 2)).replay(recorder) is recorder
    assert recorder.calls == [(A, 3), (B, 2)]


def test_replay_needs_something_that_composes():
    with pytest.raises(TypeError, match="compose"):
        ledger_of((A, 3)).replay(0.5)


@settings(max_examples=50, deadline=None)
@given(pairs=ledgers)
def test_json_lines_round_trip(pairs):
    ledger = ledger_of(*pairs)
    assert PrivacyLedger.from_json_lines(ledger.to_json_lines()) == ledger


def test_json_lines_are_written_to_a_path_too(tmp_path):
    text = ledger_of((A, 1)).to_json_lines(tmp_path / "run.jsonl")
    assert (tmp_path / "run.jsonl").read_text() == text


def test_json_lines_replace_an_export_and_nothing_else(saved, tmp_path):
    before = saved.read_bytes()
    with pytest.raises(FileExistsError, match="is no exported ledger"):
        ledger_of((A, 1)).to_json_lines(saved)
    assert saved.read_bytes() == before
    for count in (1, 2):
        ledger_of((A, count)).to_json_lines(tmp_path / "run.jsonl")
    with pytest.raises(FileNotFoundError, match="create it"):
        ledger_of((A, 1)).to_json_lines(tmp_path / "no" / "run.jsonl")


LINES = reading.of_version_1(ledger_of((A, 3), (B, 2)).to_json_lines()).splitlines()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        (["{}"], "line 1 is not the header"),
        (["[]"], "line 1 must be a JSON object"),
        (LINES[1:], "line 1 is not the header"),
        (LINES[:-1], "truncated or edited"),
        ([LINES[0], LINES[2]], "truncated or edited"),
        ([LINES[0].replace('"version": 1', '"version": 2'), *LINES[1:]], "last line must hold"),
        ([*LINES, "", ""], "line 4 is not valid JSON"),
        ([*LINES, LINES[1]], "truncated or edited"),
        ([LINES[0].replace('"version": 1', '"version": 3'), *LINES[1:]], "newer"),
        ([LINES[0].replace('"version": 1', '"version": true'), *LINES[1:]], "newer"),
        ([LINES[0].replace("ledger_id", "id"), *LINES[1:]], "malformed header"),
        ([*LINES[:2], LINES[2].replace('"count": 2', '"count": 2.0')], "line 3: count"),
        ([*LINES[:2], LINES[2].replace('"count": 2', '"n": 2')], "line 3 must have"),
        ([*LINES[:2], LINES[2].replace("1.1", "NaN")], "line 3 is not valid JSON"),
        ([*LINES[:2], LINES[2].replace("1.1", "1e999")], "line 3: event.event.noise_stddev"),
    ],
)
def test_malformed_json_lines_say_where(lines, message):
    with pytest.raises(LedgerFormatError, match=message):
        PrivacyLedger.from_json_lines("\n".join(lines))


def test_non_private_event_is_kept():
    ledger = ledger_of((NonPrivateEvent(), 1))
    assert (
        next(iter(PrivacyLedger.from_json_lines(ledger.to_json_lines()))).event == NonPrivateEvent()
    )


def test_an_export_is_of_one_moment(monkeypatch):
    """Another thread may append between the header, which counts, and the lines."""
    ledger, look = ledger_of((A, 1)), PrivacyLedger.entries_from

    def look_and_go_on(self, index):
        found = look(self, index)
        self.append(B)
        return found

    monkeypatch.setattr(PrivacyLedger, "entries_from", look_and_go_on)
    text = ledger.to_json_lines()
    monkeypatch.undo()
    assert list(PrivacyLedger.from_json_lines(text)) == [LedgerEntry(A, 1)]


@pytest.mark.parametrize("same", [0, 3, 4, 5, 6])
def test_copies_that_went_different_ways_share_the_steps_before(same):
    first, second = (GaussianSumEvent(1.0, z) for z in (1.0, 2.0))
    start = PrivacyLedger()
    for event, count in ((first, 4), (second, 2)):
        if taken := min(count, max(0, same - (0 if event is first else 4))):
            start.append(event, taken)
    copies = [PrivacyLedger.from_json_lines(start.to_json_lines()) for _ in range(2)]
    copies[0].append(GaussianSumEvent(1.0, 3.0), 2)
    copies[1].append(second, 3)
    key = start.watermark()[1]
    for position in range(same + 3):
        shared = position <= same
        assert copies[0].holds_steps_of(copies[1], position, key) is shared
        assert copies[1].holds_steps_of(copies[0], position, key) is shared
    assert not copies[0].holds_steps_of(copies[1], 99, key)
    assert copies[0].holds_steps_of(copies[0], same + 2, key)
    assert not PrivacyLedger().holds_steps_of(copies[0], 1, key)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_equal_steps_of_a_copy_are_its_own(way, saved):
    ledger = PrivacyLedger.load(saved)
    copies = [way(ledger), way(ledger), PrivacyLedger.load(saved)]
    later = way(copies[0])
    for one in (ledger, *copies):
        one.append(A, 4)
    key = ledger.watermark()[1]
    for one, other in itertools.permutations((ledger, *copies), 2):
        assert one.total_count == sum(entry.count for entry in one) == 10
        assert one.holds_steps_of(other, 6, key) and not one.holds_steps_of(other, 7, key)
    assert not later.holds_steps_of(copies[0], 7, key)
    # Who copies what has gone on, goes on; and what a file says is whoever's it may be.
    after = way(ledger)
    after.append(A)
    assert after.holds_steps_of(ledger, 10, key) and after.holds_steps_of(after, 11, key)
    ledger.save(saved)
    assert PrivacyLedger.load(saved).holds_steps_of(ledger, 10, key)
    assert ledger.holds_steps_of(PrivacyLedger.load(saved), 10, key)


def test_a_place_in_another_ledger_is_not_held():
    one, other = ledger_of((A, 3)), ledger_of((A, 3))
    count, key = one.watermark()
    assert one.holds(count, key) and not one.holds(count + 1, key)
    assert not other.holds(count, key)
