"""Every relation, sampling and release has its words, and the sentences are whole."""

import dataclasses

import pytest

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.report import words


def _concrete(base):
    """Returns the names of the public classes of `tfdp.events` that are derived from `base`."""
    found = [getattr(events, name) for name in events.__all__]
    return {c.__name__ for c in found if isinstance(c, type) and issubclass(c, base)} - {
        base.__name__
    }


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("unit", [None, "example", "microbatch", "user", "household"])
def test_every_relation_has_words_for_every_unit(relation, unit):
    for text in (words.how_neighbours_differ(relation, unit), words.the_secret(relation, unit)):
        assert "{" not in text
        assert (unit or "unit") in text
    assert words.the_answer(relation)


def test_units():
    assert words.unit_name(None) == "one unit"
    assert words.unit_name("user") == "one user"
    assert words.unit_name("household") == "one household"
    assert words.unit_meaning(None) == "the ledger does not say what a unit is"
    assert words.unit_meaning("household") == "as the ledger names it"


def test_sentence_by_hand():
    assert words.the_secret(NeighboringRelation.ADD_OR_REMOVE_ONE, "user") == (
        "whether a given user was in the data"
    )


def test_every_sampling_has_words():
    assert _concrete(events.Sampling) <= set(words.SAMPLINGS)


def test_fields_that_are_named_exist():
    classes = [getattr(events, name) for name in events.__all__]
    fields = {
        field.name
        for c in classes
        if dataclasses.is_dataclass(c)
        for field in dataclasses.fields(c)
    }
    assert set(words.FIELDS) <= fields
