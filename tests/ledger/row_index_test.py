"""tfdp.ledger.row_index: places are found again, in this history and in no other."""

import hashlib

from tfdp.ledger.chain import Row
from tfdp.ledger.row_index import RowIndex


def _index(rows, name=""):
    index = RowIndex()
    for position, (session, target, count) in enumerate(rows):
        digest = hashlib.sha256(f"{name}{position}".encode()).digest()
        event = "{}" if target is None else None
        index.add(Row(position, session, target, count, event), digest)
    return index


ROWS = [("", None, 2), ("a", None, 8), ("a", 1, 5), ("b", None, 3)]


def test_positions_count_what_was_given_back_too():
    index = _index(ROWS)
    assert [index.end_of(row) for row in range(4)] == [2, 10, 10, 13]
    assert index.end == 13


def test_place_of_every_event_is_held_by_this_history_and_no_other():
    index, other, shorter = _index(ROWS), _index(ROWS, "other"), _index(ROWS[:2])
    for position in range(1, 14):
        place = index.watermark(position)
        assert index.holds(*place) and not other.holds(*place)
        assert shorter.holds(*place) == (position <= 10)
    assert not index.holds(14, index.watermark(13)[1])


def test_nothing_has_the_place_zero():
    assert RowIndex().watermark(0) == _index(ROWS).watermark(0) == (0, 0)
    assert RowIndex().end == 0


def test_rows_that_were_saved_are_known():
    index = _index(ROWS)
    assert [index.was_saved(position) for position in (1, 2, 3)] == [True, True, False]
