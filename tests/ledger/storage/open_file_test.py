"""tfdp.ledger.storage.open_file: a transaction is whole, or the file is not written to any more."""

import os
import sqlite3
import threading

import pytest

from tfdp.ledger import LedgerWriteError, PrivacyLedger
from tfdp.ledger.errors import PassTakenError
from tfdp.ledger.storage import open_file
from tfdp.ledger.storage.files import open_to_write
from tfdp.ledger.storage.open_file import OpenFile, nobody_writes


@pytest.fixture
def path(tmp_path):
    PrivacyLedger().save(tmp_path / "run.ledger")
    return tmp_path / "run.ledger"


@pytest.fixture
def file(path):
    opened = OpenFile(path)
    yield opened
    opened.close("the test has ended")


def _note(file):
    return file.connection.execute("SELECT value FROM meta WHERE key = 'note'").fetchone()


def _write(file):
    file.connection.execute("INSERT INTO meta VALUES ('note', 'x')")


def test_a_transaction_is_committed(file):
    file.ahead = True
    with file.transaction():
        _write(file)
    assert (_note(file), file.ahead, file.why_closed) == (("x",), False, None)


@pytest.mark.parametrize(
    ("error", "ahead", "closes"),
    [
        (ValueError("no"), False, False),
        (ValueError("no"), True, True),
        (PassTakenError("taken"), False, False),
        (LedgerWriteError("broken"), False, True),
    ],
)
def test_a_transaction_that_fails_is_undone(path, file, error, ahead, closes):
    with pytest.raises(type(error), match=str(error)), file.transaction():
        _write(file)
        file.ahead = ahead
        raise error
    assert (file.why_closed == str(error)) == closes
    if closes:
        with pytest.raises(LedgerWriteError, match=f"is not open any more: {error}"):
            file.check_usable()
        file = OpenFile(path)
    assert _note(file) is None


def test_what_sqlite_says_is_an_error_of_the_ledger(file):
    with pytest.raises(LedgerWriteError, match="cannot be written to, SQLite says"):
        with file.transaction():
            file.connection.execute("INSERT INTO nowhere VALUES (1)")
    with pytest.raises(sqlite3.ProgrammingError):
        _note(file)


def test_another_file_in_its_place_is_noticed(path, file):
    other = path.with_name("other.ledger")
    PrivacyLedger().save(other)
    os.replace(other, path)
    with pytest.raises(LedgerWriteError, match="was replaced while it was open"):
        file.check_usable()
    path.unlink()
    with pytest.raises(LedgerWriteError, match="is gone, while it was open"):
        file.check_usable()


def test_a_forked_process_opens_its_own(file):
    file.process += 1
    with pytest.raises(LedgerWriteError, match="opened before this process was forked"):
        file.check_usable()


def test_the_first_reason_for_closing_is_kept(file):
    file.close("first")
    file.close("second")
    with pytest.raises(LedgerWriteError, match="first"):
        file.check_usable()


def test_whoever_waited_for_a_file_that_was_replaced_does_not_write_to_it(path, file):
    refused, inside = [], threading.Event()

    def write():
        inside.set()
        with pytest.raises(LedgerWriteError, match="was replaced") as error, file.transaction():
            _write(file)
        refused.append(error)

    thread = threading.Thread(target=write)
    with nobody_writes(path):
        thread.start()
        inside.wait()
        thread.join(0.2)
        assert not refused
        other = path.with_name("other.ledger")
        PrivacyLedger().save(other)
        os.replace(other, path)
    thread.join()
    assert len(refused) == 1


def test_a_file_that_is_replaced_while_it_is_opened_is_not_written_to(path, monkeypatch):
    def replace_and_open(target):
        PrivacyLedger().save(path.with_name("other.ledger"))
        os.replace(path.with_name("other.ledger"), path)
        return open_to_write(target)

    monkeypatch.setattr(open_file, "open_to_write", replace_and_open)
    with pytest.raises(LedgerWriteError, match="was replaced"):
        OpenFile(path)
