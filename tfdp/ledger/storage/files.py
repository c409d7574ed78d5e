"""Which files are opened, and how: regular ones, read-only, and as their last writer meant them."""

import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage.schema import MAX_FILE_BYTES

# How long to wait for another process that writes.
PATIENCE_SECONDS = 30
# What a journal of SQLite begins with while it is needed, and what stands at its end where it
# names another file.
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turns what SQLite says about a file that it cannot read into an error of ours."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        text = str(error)
        if "locked" in text:
            raise TimeoutError(
                f"{path} was held by another process for {PATIENCE_SECONDS} seconds. Try again."
            ) from error
        if "not a database" in text:
            raise LedgerFormatError(not_a_ledger(path)) from error
        raise LedgerFormatError(
            f"{path} is truncated or corrupt, SQLite says: {text}. Restore it from a copy."
        ) from error


def not_a_ledger(path: Path) -> str:
    """Returns the words for a file that is no SQLite file at all."""
    return (
        f"{path} is not a ledger: it does not begin as an SQLite file does. "
        "Give the file that PrivacyLedger.save wrote. An export is read by tfdp "
        "replay and report where its name ends in .jsonl, and by PrivacyLedger.from_json_lines."
    )


def _not_permitted(path: Path) -> PermissionError:
    return PermissionError(
        f"This user may not read {path}, or not look into its folder. Ask its owner, or run as a "
        "user who may."
    )


def _check_readable(path: Path) -> None:
    # The file is not opened: where it is closed again, locks of SQLite in this process would end.
    if not os.access(path, os.R_OK):
        raise _not_permitted(path)


def is_there(path: Path) -> bool:
    """Returns whether there is a file, or a link, at a path.

    Raises:
        PermissionError: this user may not know.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise _not_permitted(path) from error
    return True


def check_regular(path: Path, what: str) -> os.stat_result:
    """Returns what the system says of a regular file, which is not opened.

    Raises:
        FileNotFoundError: there is none.
        LedgerFormatError: it is a folder, a pipe or a device, which could hold up a reader forever.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"There is no {what} at {path}. Give the path of a file that exists."
        ) from error
    except PermissionError as error:
        raise _not_permitted(path) from error
    if not stat.S_ISREG(status.st_mode):
        raise LedgerFormatError(f"{path} is no regular file, and so no {what}.")
    return status


def _side(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def check_file(path: Path) -> None:
    """Raises unless SQLite may be given the file to open.

    Raises:
        FileNotFoundError: there is none.
        PermissionError: this user may not read it, or the journal beside it.
        LedgerFormatError: it cannot be a ledger, or files beside it cannot be those of one.
    """
    size = check_regular(path, "ledger").st_size
    _check_readable(path)  # SQLite would not say so.
    if not size:
        raise LedgerFormatError(not_a_ledger(path))
    if size > MAX_FILE_BYTES:
        raise LedgerFormatError(f"{path} has {size} bytes; at most {MAX_FILE_BYTES} are read.")
    if os.path.lexists(_side(path, "-wal")):
        raise LedgerFormatError(_with_log(path))
    journal = journal_of(path)
    if os.path.lexists(journal):
        check_regular(journal, "journal")
        _check_readable(journal)


def _with_log(path: Path) -> str:
    return (
        f"{path} has, or had, a write-ahead log, {path.name}-wal: an earlier tfdp was not ended in "
        "good order. Nobody can tell whether the log is whole. Let that tfdp open and close the "
        "file; where the log is lost, restore the newest copy and add the steps since then."
    )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    # Transactions are begun by hand; whoever uses a connection in several threads keeps them apart.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=PATIENCE_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def journal_of(path: Path) -> Path:
    """Returns where SQLite keeps the journal of a file."""
    return _side(path, "-journal")


def is_needed(journal: Path) -> bool:
    """Whether the journal is that of a transaction that was not ended."""
    try:
        with journal.open("rb") as file:
            return file.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC
    except FileNotFoundError:
        return False


def _names_another_file(journal: Path) -> bool:
    with journal.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(_JOURNAL_MAGIC)))
        return file.read() == _JOURNAL_MAGIC


@contextlib.contextmanager
def open_read_only(path: Path) -> Iterator[tuple[sqlite3.Connection, bool]]:
    """Opens a file of SQLite to read it; neither it nor what is beside it is ever written to.

    A process that was killed in the middle of a commit leaves a journal beside the file, which
    holds what the file was before. That commit never returned, so that nothing was released that it
    was to charge: the file is read as it was before, in a copy, since undoing is writing. Yielded
    is also whether that is so.

    Raises:
        FileNotFoundError: there is no such file.
        TimeoutError: another process holds it.
        LedgerFormatError: it is no ledger, or damaged.
    """
    check_file(path)
    undone = False
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(_connect(path, "mode=ro")))
        with sqlite_errors(path):
            try:
                mode = _journal_mode(connection)
            except sqlite3.OperationalError:
                undone = is_needed(journal_of(path))
                if not undone:
                    raise
                connection = stack.enter_context(_undone_copy(path))
                mode = _journal_mode(connection)
        if mode == "wal":
            raise LedgerFormatError(_with_log(path))
        yield connection, undone


def _journal_mode(connection: sqlite3.Connection) -> str:
    """Returns the journal mode, after a first query: only then the file is looked at."""
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.execute("PRAGMA cache_size = -4000")  # The file suggests another one.
    return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


@contextlib.contextmanager
def _undone_copy(path: Path) -> Iterator[sqlite3.Connection]:
    if _names_another_file(journal_of(path)):
        raise LedgerFormatError(
            f"{path.name}-journal beside {path} names another file, as no journal of a ledger does."
        )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy.ledger")
        shutil.copyfile(path, copy)
        with contextlib.suppress(FileNotFoundError):  # Another process has undone it meanwhile.
            shutil.copyfile(journal_of(path), journal_of(copy))
        with contextlib.closing(_connect(copy, "mode=rw")) as connection:
            yield connection


@contextlib.contextmanager
def open_as_it_stands(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a copy of a file of SQLite to read it without what is beside the file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy.ledger")
        shutil.copyfile(path, copy)
        with contextlib.closing(_connect(copy, "mode=ro")) as connection:
            yield connection


def open_to_write(path: Path) -> sqlite3.Connection:
    """Opens a file of SQLite that exists; every commit is on the disk when it returns.

    The file itself holds all that was committed, at every moment: the journal is what a commit
    that is cut short is undone from, not what has happened since.
    """
    connection = _connect(path, "mode=rw")
    # The journal is not removed at each commit but its first bytes are cleared, and synced: a
    # removal may be forgotten by a disk that loses power.
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute("PRAGMA synchronous = FULL")
    return connection
