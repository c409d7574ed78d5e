"""tfdp.ledger.continuation: what goes on from what, held against lists of single events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.events import GaussianSumEvent, PureEpsilonEvent
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.continuation import agree_up_to, continuing_file, is_prefix
from tfdp.ledger.entry import LedgerEntry, merged

_EVENTS = [GaussianSumEvent(1.0, 1.0), PureEpsilonEvent(1.0)]
_entries = st.lists(
    st.builds(LedgerEntry, st.sampled_from(_EVENTS), st.integers(1, 3)), max_size=4
).map(lambda entries: list(merged(entries)))


def _singly(entries):
    return [event for event, count in entries for _ in range(count)]


@settings(max_examples=300)
@given(_entries, _entries)
def test_prefix_is_that_of_the_single_events(first, whole):
    one, other = _singly(first), _singly(whole)
    assert is_prefix(first, whole) == (one == other[: len(one)])


@settings(max_examples=300)
@given(_entries, _entries, st.integers(1, 8))
def test_agreement_is_that_of_the_single_events(one, other, position):
    mine, theirs = _singly(one)[:position], _singly(other)[:position]
    assert agree_up_to(position, one, other) == (mine == theirs and len(mine) == position)


def test_a_file_of_many_rows_of_one_event_is_continued(tmp_path):
    path = tmp_path / "run.ledger"
    with PrivacyLedger.open(path, create=True, lease=1) as ledger:
        for _ in range(3):
            ledger.append(_EVENTS[0])
    loaded = PrivacyLedger.load(path)
    loaded.append(_EVENTS[0])
    with continuing_file(path, loaded.ledger_id, list(loaded), 3):
        pass
    for ledger_id, entries, most, what in (
        (loaded.ledger_id, list(loaded), 2, "this ledger with steps that are not in this one"),
        (loaded.ledger_id, [LedgerEntry(_EVENTS[0], 2)], 3, "this ledger with steps that are not"),
        ("0" * 32, list(loaded), 3, "another ledger"),
    ):
        with (
            pytest.raises(FileExistsError, match=what),
            continuing_file(path, ledger_id, entries, most),
        ):
            pytest.fail("It was let in.")
    with PrivacyLedger.open(path) as ledger:  # Nobody holds it any more.
        ledger.append(_EVENTS[0])
