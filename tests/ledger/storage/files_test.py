"""Only regular files are opened, and errors of SQLite name the file."""

import os
import sqlite3

import pytest

from tfdp.ledger import LedgerFormatError, PrivacyLedger
from tfdp.ledger.storage import files
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


@pytest.mark.parametrize("what", ["run.ledger", "run.ledger-journal"])
@pytest.mark.parametrize("read", [PrivacyLedger.load, PrivacyLedger.open])
def test_a_file_that_this_user_may_not_read_is_named(tmp_path, monkeypatch, read, what):
    PrivacyLedger().save(tmp_path / "run.ledger")
    (tmp_path / "run.ledger-journal").write_bytes(b"")
    # Root may read all files.
    monkeypatch.setattr(files.os, "access", lambda path, mode: path != tmp_path / what)
    with pytest.raises(PermissionError, match=f"may not read {tmp_path / what}, .*Ask its owner"):
        read(tmp_path / "run.ledger")


@pytest.mark.parametrize("read", [PrivacyLedger.load, PrivacyLedger.open])
def test_what_is_in_a_folder_that_this_user_may_not_look_into_is_not_missing(
    tmp_path, monkeypatch, read
):
    path = tmp_path / "run.ledger"
    PrivacyLedger().save(path)

    def denied(asked, *_, **__):
        raise PermissionError(13, "Permission denied", asked)

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat"):
            patch.setattr(files.os, name, denied)
        with pytest.raises(PermissionError, match="not look into its folder"):
            files.check_regular(path, "ledger")
        with pytest.raises(PermissionError, match="not look into its folder"):
            files.is_there(path)
    assert files.is_there(path) and not files.is_there(tmp_path / "no")
    assert not files.is_there(path / "beneath")
    read(path)
