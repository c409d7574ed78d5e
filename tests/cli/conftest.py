"""Ledgers on file, for tests of every command."""

import itertools

import pytest

from tfdp.ledger import PrivacyLedger


@pytest.fixture
def save(tmp_path):
    numbers = itertools.count()

    def save(*pairs):
        path = tmp_path / f"run{next(numbers)}.ledger"
        ledger = PrivacyLedger()
        for event, count in pairs:
            ledger.append(event, count)
        ledger.save(path)
        return ledger, str(path)

    return save
