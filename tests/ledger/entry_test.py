"""Entries, and the header that says how many there must be."""

import pytest

from tfdp.events import GaussianSumEvent
from tfdp.ledger import LedgerFormatError
from tfdp.ledger.entry import (
    MAX_COUNT,
    LedgerEntry,
    check_counts,
    check_header,
    check_ledger_id,
    make_entry,
    make_header,
    merged,
    total_count,
)

ONE, OTHER = GaussianSumEvent(1.0, 2.0), GaussianSumEvent(1.0, 3.0)
ENTRIES = [LedgerEntry(ONE, 3), LedgerEntry(OTHER, 4)]
ID = "0" * 32


def test_counts_are_added():
    assert total_count(ENTRIES) == 7
    header = make_header(ID, ENTRIES)
    assert (header["entry_count"], header["total_count"]) == (2, 7)
    assert check_header(header, "here") == ID


def test_only_neighbours_are_merged():
    entries = [LedgerEntry(ONE, 1), LedgerEntry(ONE, 2), LedgerEntry(OTHER, 4), LedgerEntry(ONE, 8)]
    assert list(merged(entries)) == [(ONE, 3), (OTHER, 4), (ONE, 8)]


@pytest.mark.parametrize("name", ["entry_count", "total_count"])
@pytest.mark.parametrize("wrong", [1, 9, True, "2", None])
def test_header_that_counts_otherwise_is_refused_at_the_end(name, wrong):
    header = make_header(ID, ENTRIES) | {name: wrong}
    entries = check_counts(header, iter(ENTRIES), "here")
    assert [next(entries), next(entries)] == ENTRIES
    with pytest.raises(LedgerFormatError, match=f"here was truncated or edited.*{name}"):
        next(entries)


def test_more_events_than_an_integer_of_sqlite_holds_are_refused():
    entries = [LedgerEntry(ONE, MAX_COUNT), LedgerEntry(OTHER, 1)]
    header = make_header(ID, entries)
    with pytest.raises(LedgerFormatError, match="counts more than"):
        list(check_counts(header, iter(entries), "here"))


@pytest.mark.parametrize("ledger_id", [None, 7, "", "0" * 31, "0" * 33, "G" * 32, "0" * 31 + "\n"])
def test_malformed_ids_are_refused(ledger_id):
    with pytest.raises(LedgerFormatError, match="ledger_id"):
        check_ledger_id(ledger_id, "here")


@pytest.mark.parametrize("count", [0, -1, True, 1.0, "1", None, MAX_COUNT + 1])
def test_malformed_counts_are_refused(count):
    with pytest.raises(LedgerFormatError, match="here: count"):
        make_entry(ONE, count, "here")


def test_a_header_has_its_members_and_no_others():
    header = make_header(ID, ENTRIES)
    for other in (header | {"more": 1}, {k: header[k] for k in list(header)[1:]}):
        with pytest.raises(LedgerFormatError, match="malformed header"):
            check_header(other, "here")
