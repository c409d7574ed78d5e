"""Only regular files are opened, and errors of SQLite name the file."""

import os
import sqlite3

import pytest

from tfdp.ledger import LedgerFormatError, PrivacyLedger
from tfdp.ledger.storage.files import check_regular, open_read_only, sqlite_errors


def test_regular_file_is_accepted(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert check_regular(tmp_path / "x", "ledger").st_size == 5


def test_folders_and_missing_files_are_refused(tmp_path):
    with pytest.raises(LedgerFormatError, match="no regular file"):
        check_regular(tmp_path, "ledger")
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "gone", "ledger")


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LedgerFormatError, match="no regular file"):
        check_regular(tmp_path / "pipe", "ledger")


def test_errors_of_sqlite_name_the_file(tmp_path):
    path = tmp_path / "x.ledger"
    with pytest.raises(LedgerFormatError, match="x.ledger"), sqlite_errors(path):
        raise sqlite3.DatabaseError("file is not a database")


def test_file_that_is_open_for_reading_cannot_be_written(tmp_path):
    path = tmp_path / "x.ledger"
    PrivacyLedger().save(path)
    with open_read_only(path) as (connection, _), pytest.raises(sqlite3.OperationalError):
        connection.execute("DELETE FROM meta")
