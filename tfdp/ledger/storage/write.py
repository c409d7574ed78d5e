"""Writing a ledger file: whole ones, all or nothing, and the rows of one that is open."""

import contextlib
import glob
import os
import re
import shutil
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfdp.ledger import codec
from tfdp.ledger.chain import KEYED, Chain, Row
from tfdp.ledger.entry import LedgerEntry, total_count
from tfdp.ledger.errors import LedgerWriteError
from tfdp.ledger.storage.files import check_regular
from tfdp.ledger.storage.schema import STATEMENTS, Header

try:
    import fcntl
except ModuleNotFoundError:  # On Windows.
    fcntl = None  # type: ignore[assignment]

# What every export begins with.
_EXPORT = b'{"format": "tfdp.ledger"'


def fsync(path: Path, flags: int) -> None:
    """Puts a file or a folder on the disk.

    Args:
        path: Of it.
        flags: That it is opened with.
    """
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hide_draft(draft: Path, target: Path) -> None:
    """Makes the file to write to, readable by nobody else, where there is one to be replaced.

    Args:
        draft: The file to write to, which is not there.
        target: Where it will be.
    """
    if target.exists():
        draft.touch(0o600)


def take_permissions(draft: Path, target: Path) -> None:
    """Gives a file the permissions of `target`, which it will replace, where that is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copymode(target, draft)


def put_in_place(draft: Path, target: Path) -> None:
    """Moves a file that is whole to `target`, with the permissions of what it replaces there."""
    take_permissions(draft, target)
    os.replace(draft, target)


def _fsync_folder(path: Path) -> None:
    """Puts the name of a file on the disk. Windows cannot open a folder, nor must it."""
    if os.name == "posix":
        fsync(path.parent, os.O_RDONLY)


def insert(connection: sqlite3.Connection, row: Row, digest: bytes) -> None:
    """Adds a row."""
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (*row, digest))


def put_head(connection: sqlite3.Connection, num_rows: int, total: int, head: str) -> None:
    """Says what the rows amount to.

    Args:
        connection: Of the ledger's file.
        num_rows: How many rows there are.
        total: How many events they stand for.
        head: The digest of the last row, in hexadecimal.
    """
    values = {"entry_count": num_rows, "total_count": total, "head": head}
    connection.executemany(
        "UPDATE meta SET value = ? WHERE key = ?", [(str(v), k) for k, v in values.items()]
    )


@contextlib.contextmanager
def write_errors(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turns what SQLite, and `others`, say about a failed write into a `LedgerWriteError`."""
    try:
        yield
    except (LedgerWriteError, FileExistsError):
        raise
    except (sqlite3.Error, *others) as error:  # type: ignore[misc]
        said = f"SQLite says: {error}" if isinstance(error, sqlite3.Error) else str(error)
        raise LedgerWriteError(
            f"{path} cannot be written to, {said}. Nothing that is not in it may happen: free the "
            "disk, make file and folder writable, or wait for the process that holds it, and open "
            "the ledger again."
        ) from error


def _write_new(
    path: Path, ledger_id: str, dataset_id: str | None, entries: Sequence[LedgerEntry], chain: Chain
) -> None:
    digest = chain.first
    connection = sqlite3.connect(path, isolation_level=None)
    with contextlib.closing(connection):
        # Nobody knows the file yet, and nobody will where this is cut short.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for statement in STATEMENTS:
            connection.execute(statement)
        for position, (event, count) in enumerate(entries):
            row = Row(position, "", None, count, codec.to_text(event))
            digest = chain.next(digest, row)
            insert(connection, row, digest)
        total = total_count(entries)
        head = chain.head(digest, len(entries), total)
        header = Header(ledger_id, dataset_id, chain.name == KEYED, len(entries), total, head)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", header.meta().items())
        connection.execute("COMMIT")
    fsync(path, os.O_RDWR)


def remove_left_over(target: Path) -> None:
    """Removes what processes that were killed left beside `target`, which nobody had seen yet."""
    if os.name != "posix":  # Elsewhere nobody can ask for a process without ending it.
        return
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        found = re.fullmatch(
            r"\.([0-9]{1,9})\.[0-9a-f]{32}\.tmp", path.name[1 + len(target.name) :]
        )
        if found is None:
            continue
        try:
            os.kill(int(found[1]), 0)
        except ProcessLookupError:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        except PermissionError:
            continue  # It runs, for somebody else.


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], what: str = "ledger") -> Iterator[tuple[Path, Path]]:
    """Yields the path, and one beside it to write to, which is gone afterwards. Nobody may read
    that who may not read what is at the path.

    Raises:
        FileNotFoundError: the folder does not exist.
        LedgerWriteError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"The folder of the {what} does not exist; create it. Received: path={path!r}."
        )
    with write_errors(target, OSError):
        remove_left_over(target)
        try:
            hide_draft(temporary, target)
            yield target, temporary
        finally:
            temporary.unlink(missing_ok=True)
        _fsync_folder(target)


@contextlib.contextmanager
def exchanging(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lets nobody else in who looks at a file of this folder to put another in its place.

    Edge cases:
        Windows, and file systems without locks, let everybody in.

    Raises:
        LedgerWriteError: the folder cannot be opened.
    """
    target = Path(os.path.realpath(path))
    if fcntl is None or not target.parent.is_dir():
        yield
        return
    with write_errors(target, OSError):
        descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            # A process that was forked meanwhile has the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def write(
    path: str | os.PathLike[str],
    ledger_id: str,
    entries: Sequence[LedgerEntry],
    dataset_id: str | None = None,
) -> None:
    """Writes the ledger to `path`, in place of what is there, all or nothing, and onto the disk.

    Args:
        path: File.
        ledger_id: Which ledger.
        entries: All of it.
        dataset_id: Which data set it is about; None where it does not say.

    Raises:
        FileNotFoundError: the folder does not exist.
        LedgerWriteError: it cannot be written; what was there is still there.
    """
    with new_file(path) as (target, temporary):
        _write_new(temporary, ledger_id, dataset_id, entries, Chain(ledger_id, dataset_id, None))
        put_in_place(temporary, target)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes an exported ledger to `path`, in place of another export, and onto the disk.

    Raises:
        FileExistsError: there is something else than an export.
        FileNotFoundError: the folder does not exist.
        LedgerWriteError: it cannot be written; what was there is still there.
    """
    with new_file(path) as (target, temporary):
        if target.exists():
            check_regular(target, "exported ledger")
            with target.open("rb") as file:
                start = file.read(len(_EXPORT))
            if start not in (b"", _EXPORT):
                raise FileExistsError(
                    f"{target} is no exported ledger, and would be lost. Give another path."
                )
        temporary.write_text(text, encoding="utf-8", newline="\n")
        fsync(temporary, os.O_RDWR)
        put_in_place(temporary, target)


def create(path: str | os.PathLike[str], dataset_id: str | None, key: bytes | None) -> None:
    """Writes an empty ledger with a new id to `path`, unless there is a file.

    Raises:
        FileNotFoundError: the folder does not exist.
        LedgerWriteError: it cannot be written.
    """
    ledger_id = uuid.uuid4().hex
    chain = Chain(ledger_id, dataset_id, key)
    with new_file(path) as (target, temporary):
        _write_new(temporary, ledger_id, dataset_id, (), chain)
        with contextlib.suppress(FileExistsError):  # Another process was faster: that one counts.
            os.link(temporary, target)
