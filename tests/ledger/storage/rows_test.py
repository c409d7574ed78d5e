"""Rows must follow from those before: what a reader counts, and what it refuses."""

import pathlib

import pytest

from tfdp.ledger.chain import Row
from tfdp.ledger.storage.rows import RowReader

ANNA, BERT = "a" * 32, "b" * 32
EVENT = '{"text": "not looked at here"}'


def lease(position, count, session=ANNA):
    return Row(position, session, None, count, EVENT)


def settled(position, target, count, session=ANNA):
    return Row(position, session, target, count, None)


def reader_of(*rows):
    reader = RowReader(pathlib.Path("x.ledger"), None)
    for row in rows:
        assert reader._problem(row, bytes(32)) is None
        reader.add(row, bytes(32))
    return reader


def problem(reader, row):
    return reader._problem(row, bytes(32))


def test_leases_count_until_they_are_settled():
    reader = reader_of(lease(0, 8), lease(1, 4, BERT), settled(2, 0, 5))
    # 8 + 4 were reserved, and 5 of the 8 did not happen.
    assert (reader.num_rows, reader.total_count) == (3, 7)
    assert list(reader.given_back) == [5, 0, 0]


@pytest.mark.parametrize("count", [8, 9, -1, 1.0, None])
def test_no_more_is_given_back_than_there_was_and_one_event_stays(count):
    assert "more than there was" in problem(reader_of(lease(0, 8)), settled(1, 0, count))


@pytest.mark.parametrize(
    "row",
    [
        settled(2, 0, 1),  # The first lease is closed by the second.
        settled(2, 1, 1, BERT),  # Another session's.
        settled(2, True, 1),  # Equal to 1, and no integer.
        settled(2, 7, 1),
    ],
)
def test_only_the_last_lease_of_the_same_session_is_given_back(row):
    assert "not taken" in problem(reader_of(lease(0, 8), lease(1, 4)), row)


def test_a_lease_is_given_back_once():
    reader = reader_of(lease(0, 8), settled(1, 0, 5))
    assert "not taken" in problem(reader, settled(2, 0, 1))


@pytest.mark.parametrize("count", [0, -1, 2**63, "1", None, 1.5])
def test_counts_are_positive_integers(count):
    assert "count must be an integer" in problem(reader_of(), lease(0, count))


def test_rows_stand_one_after_another():
    assert "is missing; the next one is 1" in problem(reader_of(), lease(1, 1))


@pytest.mark.parametrize("session", ["A" * 32, "a" * 31, None, 7])
def test_sessions_are_hexadecimal(session):
    assert "malformed" in problem(reader_of(), lease(0, 1, session))


def test_saved_rows_stand_before_those_of_sessions():
    assert problem(reader_of(lease(0, 1, "")), lease(1, 1)) is None
    assert "without a session" in problem(reader_of(lease(0, 1)), lease(1, 1, ""))
