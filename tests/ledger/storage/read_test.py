"""Reading: what was given back is left out, and what speaks for the rows is said."""

import pytest

from tfdp.events import GaussianSumEvent
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.entry import Evidence
from tfdp.ledger.storage.read import open_book, open_entries

KEY = bytes(range(32))
ONE, OTHER = GaussianSumEvent(1.0, 2.0), GaussianSumEvent(1.0, 3.0)


def test_what_was_given_back_is_not_read(tmp_path):
    path = tmp_path / "x.ledger"
    with PrivacyLedger.open(path, create=True, lease=8) as ledger:
        ledger.append(ONE)  # Reserves eight, of which seven are given back by the next event.
        ledger.append(OTHER, 2)
    with open_entries(path) as stream:
        assert [tuple(entry) for entry in stream.entries] == [(ONE, 1), (OTHER, 2)]


def test_what_speaks_for_the_rows(tmp_path):
    keyed, plain = tmp_path / "keyed.ledger", tmp_path / "plain.ledger"
    PrivacyLedger.open(keyed, create=True, key=KEY).close()
    PrivacyLedger.open(plain, create=True).close()
    found = []
    for path, key in ((keyed, KEY), (keyed, None), (plain, None)):
        with open_book(path, key) as book:
            found.append(book.evidence)
    assert found == [Evidence.KEY, Evidence.KEY_NOT_GIVEN, Evidence.DIGESTS]


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone.ledger"), open_book(tmp_path / "gone.ledger"):
        pass
