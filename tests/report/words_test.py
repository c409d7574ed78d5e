"""Every relation and unit has its words, and the sentences are whole."""

import pytest

from tfdp.events import NeighboringRelation
from tfdp.report import words


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
