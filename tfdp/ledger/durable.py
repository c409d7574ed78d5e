"""A ledger on the disk that is always ahead of what happens."""

import atexit
import contextlib
import dataclasses
import os
import threading
import uuid
import weakref
from pathlib import Path
from typing import Any

from tfdp.events import Event
from tfdp.events.arguments import positive_integer
from tfdp.ledger import codec, storage
from tfdp.ledger.chain import Row, check_key
from tfdp.ledger.continuation import agree_up_to
from tfdp.ledger.entry import MAX_COUNT, pass_index
from tfdp.ledger.errors import LedgerFormatError, LedgerWriteError, PassTakenError
from tfdp.ledger.ledger import Permit, PrivacyLedger
from tfdp.ledger.row_index import RowIndex
from tfdp.ledger.storage import schema
from tfdp.ledger.storage.files import is_there, sqlite_errors
from tfdp.ledger.storage.open_file import OpenFile
from tfdp.ledger.storage.rows import RowReader
from tfdp.ledger.storage.write import insert, put_head

DEFAULT_LEASE = 64


@dataclasses.dataclass
class _Lease:
    """Events that are on the disk, of which `left` have not happened yet."""

    event: Event
    row: int
    left: int


class DurableLedger(PrivacyLedger):
    """A `PrivacyLedger` whose every event is on the disk before `append` returns.

    Use `with PrivacyLedger.open(path) as ledger:`, or `close` it; at the end of the process it
    closes itself. Several processes may have the same file open: they are the runs on one data set,
    and each sees what the others reserved whenever it reserves.

    Guarantees:
        The file never holds fewer events than have happened, whenever the process or the machine
        stops (SQLite, synced at every commit), and no second file holds what it lacks. Events are
        reserved `lease` at a time; what is not used is given back by `settle`, `close`, another
        event, or the end of the process. After a crash a reservation counts as used.

        Rows are only ever added, each with a digest over all before it (`tfdp.ledger.chain`); a
        file that was edited is refused. Where a row cannot be written, nothing is counted, and
        `append` raises.

    Edge cases:
        A file that is replaced, removed or rolled back while it is open is noticed at the next
        reservation. Two continuations of one copied file are told apart by the weights that they
        trained (`holds`), and by `tfdp verify`, not by the files alone. Clocks are never read.

    Args:
        path: The file. Not on a network file system, where SQLite's locks are unreliable.
        create: Whether to make a new one where there is none.
        dataset_id: Which data set the events are about; written to a new file, and compared with
            that of an existing one.
        key: At least 16 secret bytes, with which digests are computed (HMAC-SHA-256); without it
            nobody can continue or forge the file.
        lease: Events that are reserved at a time. More cost less time and more privacy at a crash.

    Raises:
        FileNotFoundError: there is no file and `create` is False, or the folder does not exist.
        LedgerWriteError: the file cannot be written to.
        LedgerFormatError: the file is not a ledger, is damaged, or needs another key.
        ValueError: an argument is out of range, or the file is about another data set.
        TypeError: an argument is of the wrong type.

    Example:
        >>> import os, tempfile
        >>> from tfdp.events import GaussianSumEvent
        >>> from tfdp.ledger import PrivacyLedger
        >>> path = os.path.join(tempfile.mkdtemp(), "run.ledger")
        >>> with PrivacyLedger.open(path, create=True, dataset_id="patients-2026") as ledger:
        ...     ledger.append(GaussianSumEvent(1.0, 1.1))
        ...     PrivacyLedger.load(path).total_count  # What a crash would leave.
        64
        >>> PrivacyLedger.load(path).total_count
        1
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"A ledger on the disk is not copied: two counts of the events of {self._path} would "
            "each lack some. Open it again, PrivacyLedger.open(path), also in another process, or "
            "read what it holds now, PrivacyLedger.load(path)."
        )

    # What `_reload` takes from the file.
    _reader: RowReader
    _index: RowIndex
    _others_passes: set[int]
    _revision: int

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        dataset_id: str | None = None,
        key: bytes | None = None,
        lease: int = DEFAULT_LEASE,
    ):
        schema.check_dataset_id(dataset_id)
        check_key(key)
        super().__init__()
        self._lease_size = positive_integer("lease", lease)
        self._path = Path(os.path.realpath(path))
        self._lock = threading.RLock()
        self._session = uuid.uuid4().hex
        self._lease: _Lease | None = None

        if not is_there(self._path):
            if not create:
                raise FileNotFoundError(
                    f"There is no ledger at {self._path}. A new one, in which nothing was spent, "
                    "is made by PrivacyLedger.open(path, create=True)."
                )
            storage.create(self._path, dataset_id, key)
        # Before anything is written: also notices that a journal is not the file's own.
        with storage.open_book(self._path, key) as book:
            self._identify(book, dataset_id)
        self._file = OpenFile(self._path, key)
        with contextlib.ExitStack() as undo:
            undo.callback(self._file.connection.close)
            self._begin()
            undo.pop_all()
        _opened[id(self)] = self
        atexit.register(_close_at_exit, weakref.ref(self))

    def _identify(self, book: storage.Book, dataset_id: str | None) -> None:
        header = book.header
        if dataset_id is not None and header.dataset_id != dataset_id:
            raise ValueError(
                f"{self._path} is about the data set {header.dataset_id!r}. Received: dataset_id="
                f"{dataset_id!r}. Give each data set a ledger of its own."
            )
        if book.chain is None:
            raise LedgerFormatError(
                f"{self._path} was written with a key and is continued with the same one: "
                "PrivacyLedger.open(path, key=...)."
            )
        self._dataset_id, self._ledger_id = header.dataset_id, header.ledger_id
        self._chain = book.chain

    def _begin(self) -> None:
        with self._file.transaction():
            self._reload(0)
            # Always written, so that a file that is read-only is noticed now.
            self._file.connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")

    # Reading what the file holds.

    def _reload(self, revision: int) -> None:
        """Takes everything from the file; of this session's lease, what was used.

        Threads that read the ledger meanwhile find what it was before.
        """
        with sqlite_errors(self._path):
            header = schema.read_header(self._file.connection, self._path)
            extent = schema.read_extent(self._file.connection, self._path)
        first = RowReader(self._path, self._chain)
        for _ in first.rows(self._file.connection):
            pass
        first.check_end(header, extent)
        # Events stay as and where they are, so they go with counts of before and of after.
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        new._revision = revision
        new._reader = RowReader(self._path, self._chain)
        new._clear()
        new._index = RowIndex()
        new._others_passes = set()
        for row, digest in new._reader.rows(self._file.connection):
            new._read(row, digest, first.given_back[row.position])
        vars(self).update(vars(new))

    def _read(self, row: Row, digest: bytes, given_back: int) -> None:
        self._index.add(row, digest)
        if row.target is not None:
            return
        event, count = self._reader.entry(row)
        if row.session != self._session:
            self._others_passes.update(_passes(event))
        if self._lease is not None and self._lease.row == row.position:
            given_back = self._lease.left
        if count > given_back:
            self._append(event, count - given_back)
        self._num_read = self._total_count

    def _refresh(self) -> None:
        """Reads what other processes added, and notices what nobody may do."""
        with sqlite_errors(self._path):
            header = schema.read_header(self._file.connection, self._path)
            last = self._file.connection.execute(
                "SELECT digest FROM entries WHERE position = ?", (self._reader.num_rows - 1,)
            ).fetchone()
            ends = self._file.connection.execute("SELECT min(position), max(position) FROM entries")
            first, final = ends.fetchone()
        reader = self._reader
        gone = bool(reader.num_rows) and (last is None or last[0] != reader.digest)
        if gone or first not in (None, 0):
            raise LedgerFormatError(
                f"{self._path} was rolled back or edited while it was open. Restore the newest "
                "copy; steps since then must be added."
            )
        num_rows = 0 if final is None else final + 1
        # What the reader has passed is never read again: whoever is interrupted before all of it is
        # known here does not go on.
        self._file.ahead = True
        rows = list(reader.rows(self._file.connection))
        reader.check_end(header, schema.Extent(num_rows, num_rows))
        if any(row.target is not None and row.count for row, _ in rows):
            self._reload(self._revision + 1)
        else:
            for row, digest in rows:
                self._read(row, digest, 0)
        self._file.ahead = False

    # Writing.

    def _insert(self, target: int | None, count: int, event: str | None) -> Row:
        self._file.ahead = True
        row = Row(self._reader.num_rows, self._session, target, count, event)
        digest = self._chain.next(self._reader.digest, row)
        insert(self._file.connection, row, digest)
        self._reader.add(row, digest)
        self._index.add(row, digest)
        return row

    def _put_head(self) -> None:
        reader = self._reader
        head = self._chain.head(reader.digest, reader.num_rows, reader.total_count)
        put_head(self._file.connection, reader.num_rows, reader.total_count, head)

    def append(self, event: Event, count: int = 1, *, permit: Permit | None = None) -> None:
        """Writes `count` repetitions of `event` to the disk, or uses what is reserved there.

        Args:
            event: What is about to happen.
            count: How often.
            permit: As in `PrivacyLedger.append`. Where events must be reserved it is asked while no
                other process can write, and sees what all have written.

        Raises:
            LedgerWriteError: it could not be written; the event must not happen.
            LedgerFormatError: the file was changed by something else.
            Exception: as `PrivacyLedger.append`.
        """
        count = positive_integer("count", count)
        with self._lock:
            self._file.check_usable()
            lease = self._lease
            if lease is None or lease.left < count or lease.event != event:
                self._reserve(event, count, permit)
            else:
                if permit is not None:
                    permit(self, event)
                lease.left -= count
            self._append(event, count)

    def _reserve(self, event: Event, count: int, permit: Permit | None) -> None:
        text = codec.to_text(event)
        with self._file.transaction():
            self._refresh()
            taken = self._others_passes.intersection(_passes(event))
            if taken:
                raise PassTakenError(
                    f"Another process that writes to {self._path} has begun pass {max(taken)} over "
                    "the data."
                )
            most = None if permit is None else permit(self, event)
            ahead = self._lease_size if most is None else min(self._lease_size, most)
            reserved = max(count, ahead)
            if self._reader.total_count + reserved > MAX_COUNT:
                raise ValueError(f"A ledger counts at most {MAX_COUNT} events.")
            self._check_room(len(text))
            if self._lease is not None and self._lease.left:
                self._give_back(self._lease)
            row = self._insert(None, reserved, text)
            self._put_head()
            # Within, as whoever is interrupted after the commit goes on with the lease of before.
            self._lease = _Lease(event, row.position, reserved - count)

    def _check_room(self, num_characters: int) -> None:
        # Room for what settles, and for the rest of a page, is left in any case.
        size = os.stat(self._path).st_size + 2 * num_characters + 2**20
        if self._reader.num_rows + 4 > schema.MAX_ROWS or size > schema.MAX_FILE_BYTES:
            raise LedgerWriteError(
                f"{self._path} is full: a ledger has at most {schema.MAX_ROWS} entries and "
                f"{schema.MAX_FILE_BYTES} bytes. Save a compact copy (ledger.save), which has no "
                "key, for further runs, with a larger lease. Weights that steps of this file "
                "trained are not known there."
            )

    def _give_back(self, lease: _Lease) -> None:
        """Ends a lease, also where nothing is left: nobody can give back any of it later."""
        self._insert(lease.row, lease.left, None)
        lease.left = 0

    def appending(self) -> contextlib.AbstractContextManager[Any]:
        return self._lock

    def settle(self) -> None:
        """Gives back what is reserved and was not used."""
        with self._lock:
            if self._lease is None:
                return
            with self._file.transaction():
                self._refresh()
                self._give_back(self._lease)
                self._put_head()
                self._lease = None

    def close(self) -> None:
        """Settles, and closes the file. The ledger can still be read, not written to."""
        with self._lock:
            if self._file.why_closed is not None or self._file.process != os.getpid():
                return
            try:
                self.settle()
                self._file.leave_one_file()
            finally:
                self._file.close("it was closed.")

    def __enter__(self) -> "DurableLedger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What a reader may ask.

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def revision(self) -> int:
        """Changes when another process gave back what it had reserved."""
        return self._revision

    @property
    def head(self) -> str:
        """Head of the chain, 64 hexadecimal digits: noted elsewhere, it shows later whether rows at
        the end are missing.
        """
        with self._lock:
            reader = self._reader
            return self._chain.head(reader.digest, reader.num_rows, reader.total_count)

    def watermark(self) -> tuple[int, int]:
        with self._lock:
            position = self._index.end
            if self._lease is not None:
                position = self._index.end_of(self._lease.row) - self._lease.left
            return self._index.watermark(position)

    def holds(self, position: int, key: int) -> bool:
        if position <= 0:
            return position == 0
        was_saved = self._index.was_saved(position) and key == self._key
        return was_saved or self._index.holds(position, key)

    def continues(self, saved: PrivacyLedger, position: int, key: int) -> bool:
        if saved.ledger_id != self.ledger_id:
            return False
        if not self.holds_steps_of(saved, position, key):
            self._read_again()  # Another process may have written them since.
        return self.holds_steps_of(saved, position, key)

    def _read_again(self) -> None:
        with self._lock:
            if self._file.why_closed is None and self._file.process == os.getpid():
                with self._file.transaction():
                    self._refresh()

    def holds_steps_of(self, other: PrivacyLedger, position: int, key: int) -> bool:
        if other is self or position <= 0:
            return self.holds(position, key)
        # The digest at the place stands for all before it; the ledger's id does not.
        if self._index.holds(position, key):
            return True
        return self.holds(position, key) and agree_up_to(position, self, other)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes what has happened so far to another file.

        Raises:
            ValueError: it is the file of this ledger, which is always up to date.
            Exception: as `PrivacyLedger.save`.
        """
        if Path(os.path.realpath(path)) == self._path:
            raise ValueError(f"{path} is this ledger's own file; it is always up to date.")
        super().save(path, overwrite=overwrite)


def _passes(event: Event) -> set[int]:
    index = pass_index(event)
    return set() if index < 0 else {index}


# All that are alive, by their ids.
_opened: "weakref.WeakValueDictionary[int, DurableLedger]" = weakref.WeakValueDictionary()


def _renew_locks() -> None:
    """In a process that was forked: a thread that had a lock is not there to give it back."""
    for ledger in tuple(_opened.values()):
        ledger._lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows does not fork.
    os.register_at_fork(after_in_child=_renew_locks)


def _close_at_exit(reference: "weakref.ref[DurableLedger]") -> None:
    ledger = reference()
    if ledger is not None:
        ledger.close()


PrivacyLedger._on_disk = DurableLedger
