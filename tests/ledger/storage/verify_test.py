"""Verifying a file, with a key and against an earlier head."""

import pytest

from tfdp.events import GaussianSumEvent
from tfdp.ledger import LedgerFormatError, PrivacyLedger
from tfdp.ledger.storage import verify

KEY = bytes(range(32))
EVENT = GaussianSumEvent(1.0, 2.0)


@pytest.fixture
def grown(tmp_path):
    """A file of 5 events, and its head when it held 3."""
    path = tmp_path / "x.ledger"
    with PrivacyLedger.open(path, create=True, key=KEY, lease=1) as ledger:
        ledger.append(EVENT, 3)
        head = ledger.head
        ledger.append(EVENT, 2)
    return path, head


def test_digests_are_checked_with_the_key_only(grown):
    path, _ = grown
    assert verify(path, KEY).checked
    assert not verify(path).checked
    assert verify(path, KEY).header.total_count == 5


def test_earlier_head_is_found_with_what_it_counted(grown):
    path, head = grown
    assert verify(path, KEY, head).count_at_head == 3
    assert verify(path, KEY).count_at_head is None


def test_head_that_never_was_is_refused(grown):
    with pytest.raises(LedgerFormatError, match="never had the head"):
        verify(grown[0], KEY, "0" * 64)


def test_a_saved_ledger_that_grew_by_its_last_event_lost_its_head_and_says_why(tmp_path):
    path, ledger = tmp_path / "saved.ledger", PrivacyLedger()
    ledger.append(EVENT, 3)
    ledger.save(path)
    head = verify(path).header.head
    ledger.append(EVENT, 2)
    ledger.save(path)
    with pytest.raises(LedgerFormatError, match="PrivacyLedger.save rewrites a file, too"):
        verify(path, head=head)


def test_heads_need_the_key(grown):
    path, head = grown
    with pytest.raises(ValueError, match="written with a key"):
        verify(path, None, head)


def test_wrong_key_is_refused(grown):
    with pytest.raises(LedgerFormatError, match="key"):
        verify(grown[0], bytes(32))
