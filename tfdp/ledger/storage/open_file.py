"""The file of a ledger while it is open for writing."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from tfdp.ledger.errors import LedgerFormatError, LedgerWriteError, PassTakenError
from tfdp.ledger.storage.files import PATIENCE_SECONDS, is_needed, journal_of, open_to_write
from tfdp.ledger.storage.read import open_book
from tfdp.ledger.storage.write import fsync, write_errors
from tfdp.ledger.storage.writers_lock import WritersLock


class OpenFile:
    """A connection to the file, in the process that opened it, until it is closed or lost.

    Attributes:
        connection: To SQLite.
        ahead: Whether rows are counted as read that may not be there, or of which not all is known:
            set by whoever inserts or reads them.
        process: The process that opened the file.
        why_closed: Why nothing can be written any more, or None.

    Args:
        path: The file.
        key: That it was written with.

    Raises:
        LedgerWriteError: the file cannot be written to.
        LedgerFormatError: it is damaged, or the journal beside it is not its own.
    """

    def __init__(self, path: Path, key: bytes | None = None):
        self._path = path
        self.process = os.getpid()
        self.why_closed: str | None = None
        with write_errors(path, OSError), contextlib.ExitStack() as undo:
            self._inode = os.stat(path).st_ino
            self._writers_lock = WritersLock(path, PATIENCE_SECONDS)
            undo.callback(self._writers_lock.close)
            # Whoever opens the file undoes a commit that nobody seems to be about to end.
            with self._writers_lock.held():
                _give_up_outlived_journal(path, key)
                self.connection = open_to_write(path)
                undo.callback(self.connection.close)
                self.check_usable()
            undo.pop_all()
        self.ahead = False

    def check_usable(self) -> None:
        """Raises LedgerWriteError unless this process may still write to this very file."""
        if self.process != os.getpid():
            raise LedgerWriteError(
                f"{self._path} was opened before this process was forked. Open it again here."
            )
        if self.why_closed is not None:
            raise LedgerWriteError(f"{self._path} is not open any more: {self.why_closed}")
        try:
            inode = os.stat(self._path).st_ino
        except OSError as error:
            raise LedgerWriteError(f"{self._path} is gone, while it was open: {error}.") from error
        if inode != self._inode:
            raise LedgerWriteError(
                f"{self._path} was replaced while it was open. Open it again, if it is the one "
                "that holds all steps."
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction. Where it fails, nobody knows what is on the disk: the file is closed."""
        self.check_usable()
        with contextlib.ExitStack() as stack:
            with write_errors(self._path, OSError):
                stack.enter_context(self._writers_lock.held())
            stack.push(self._roll_back)
            with write_errors(self._path):
                self.connection.execute("BEGIN IMMEDIATE")
                self.check_usable()  # Whoever held the file may have put another in its place.
                yield
                self.connection.execute("COMMIT")
            self.ahead = False

    def _roll_back(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        broken = isinstance(error, (LedgerWriteError, LedgerFormatError))
        if (broken and not isinstance(error, PassTakenError)) or self.ahead:
            self.why_closed = str(error) or type(error).__name__
        # An open transaction holds up the other processes; SQLite may have ended it already.
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
        if self.why_closed is not None:
            self._let_go()

    def _let_go(self) -> None:
        self.connection.close()
        self._writers_lock.close()

    def leave_one_file(self) -> None:
        """Removes the journal, unless another process is about to write."""
        with contextlib.suppress(sqlite3.OperationalError):
            self.connection.execute("PRAGMA journal_mode = DELETE")

    def close(self, why: str) -> None:
        """Closes the file; `why` is what whoever writes to it afterwards is told."""
        if self.why_closed is None:
            self.why_closed = why
            self._let_go()


def _give_up_outlived_journal(path: Path, key: bytes | None) -> None:
    """Has SQLite undo nothing where the file is whole, of which `open_book` says why."""
    journal = journal_of(path)
    if not is_needed(journal):
        return
    with open_book(path, key) as book:
        if not book.outlived or book.chain is None:
            return
    fsync(path, os.O_RDWR)
    with journal.open("r+b") as file:
        file.write(bytes(28))  # As SQLite does at the end of a commit.
    fsync(journal, os.O_RDWR)


@contextlib.contextmanager
def nobody_writes(path: str | os.PathLike[str]) -> Iterator[None]:
    """Lets nobody write to a ledger meanwhile, so that another file may take its place.

    Whoever has it open finds at the next reservation that it was replaced.

    Edge cases:
        Windows lets nobody replace a file that is open, here neither: there, nothing is held.

    Raises:
        LedgerWriteError: the file cannot be written to, or another process does not let go of it.
    """
    if os.name != "posix":
        yield
        return
    file = OpenFile(Path(os.path.realpath(path)))
    try:
        with file.transaction():
            yield
    finally:
        file.close("it was held for a moment only.")
