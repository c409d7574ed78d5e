"""Where in a ledger on the disk a run was, and which copies of the ledger hold that place."""

import shutil
from copy import deepcopy

import pytest

from tests.ledger.making import A, B, crash
from tfdp.ledger import PrivacyLedger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger"


def test_place_is_held_by_the_same_ledger_only(path, tmp_path):
    places = [(0, 0)]
    with PrivacyLedger.open(path, create=True, lease=3) as ledger:
        for event in (A, A, A, A, B, A):
            ledger.append(event)
            places.append(ledger.watermark())
        assert all(ledger.holds(*place) for place in places)
    assert len({position for position, _ in places}) == len(places)
    assert all(0 <= number < 2**63 for place in places for number in place)
    with PrivacyLedger.open(path, create=True) as ledger:
        assert all(ledger.holds(*place) for place in places)
        assert not ledger.holds(places[-1][0] + 1000, places[-1][1])
        assert not ledger.holds(places[-1][0], places[1][1])
    with PrivacyLedger.open(tmp_path / "other", create=True) as other:
        other.append(A, 100)
        assert [other.holds(*place) for place in places] == [True] + 6 * [False]
    # In memory a ledger cannot go on: the file would be behind.
    assert not PrivacyLedger.load(path).holds(*places[-1])


def test_crash_does_not_take_a_place_away(path):
    ledger = PrivacyLedger.open(path, create=True, lease=3)
    ledger.append(A)
    place = ledger.watermark()
    crash(ledger)
    with PrivacyLedger.open(path, create=True) as again:
        assert again.holds(*place)


def test_copies_that_went_different_ways_are_told_apart(path, tmp_path):
    with PrivacyLedger.open(path, create=True) as ledger:
        ledger.append(A)
        common = ledger.watermark()
    shutil.copy(path, tmp_path / "copy")
    places = []
    for name in ("run.ledger", "copy"):
        with PrivacyLedger.open(tmp_path / name, create=True) as ledger:
            ledger.append(A)
            places.append(ledger.watermark())
    with PrivacyLedger.open(path, create=True) as ledger:
        assert [ledger.holds(*place) for place in (common, *places)] == [True, True, False]


def test_continues_what_was_exported_with_its_place(path):
    with (
        PrivacyLedger.open(path, create=True) as ledger,
        PrivacyLedger.open(path, create=True) as other,
    ):
        ledger.append(A)
        saved, place = PrivacyLedger.from_json_lines(ledger.to_json_lines()), ledger.watermark()
        other.append(B)
        ledger.append(B)  # Between them is what the other reserved.
        assert ledger.continues(saved, *place)
        assert not ledger.continues(PrivacyLedger(), *place)
        assert not ledger.continues(saved, place[0] + 500, place[1])


def test_copies_of_a_saved_ledger_that_went_different_ways_are_told_apart(path):
    ledger = PrivacyLedger()
    ledger.append(A, 5)
    common, copy = ledger.watermark(), deepcopy(ledger)
    ledger.append(A, 10)
    copy.append(B, 10)
    ledger.save(path)
    with PrivacyLedger.open(path) as opened:
        for asked in (opened.holds_steps_of, opened.continues):
            assert asked(ledger, *ledger.watermark()) and asked(copy, *common)
            assert not asked(copy, *copy.watermark())
        opened.append(A)
        place = opened.watermark()
        assert opened.continues(PrivacyLedger.from_json_lines(opened.to_json_lines()), *place)
        assert opened.holds_steps_of(copy, 0, 0)
