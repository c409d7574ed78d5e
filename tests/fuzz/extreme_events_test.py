"""Accountants at the ends of all ranges: a bound, infinity or a refusal by name, never an error."""

import pytest

from tests.fuzz.extreme_events import ACCOUNTANTS, faults
from tfdp.accounting import monte_carlo

# Seeds that found something, and some more; those of accountants that compose on grids take long.
_SEEDS = [0, 4, 16, 20, 23, 24, 48, 56, 117, 123, 132, 187, 240, 317, 320, 609, 623, 625, 627]
_OTHERS = range(2000, 2020)
_SLOW = ["pld", "prv", "prv of groups", "rdp of groups"]
_LONGEST = {"rdp": {609}, **dict.fromkeys(_SLOW, {24, 187, 609})}


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_extremes_are_bounded_or_refused(name, monkeypatch):
    monkeypatch.setattr(monte_carlo, "_MOST_NUMBERS", 2.0**24)
    seeds = {*_SEEDS, *(() if name in _SLOW else _OTHERS)} - _LONGEST.get(name, set())
    assert [fault for seed in seeds for fault in faults(name, seed)] == []
