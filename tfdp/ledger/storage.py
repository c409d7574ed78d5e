"""A ledger as an SQLite file.

Tables: `meta(key, value)`, and `entries(position, session, target, count, event, digest)` with the
fields of `chain.Row` and its digest. The file is marked by `application_id` and versioned by
`user_version`. `meta` holds the ids, the kind of chain, and the head of the chain with what it
covers, so that rows missing at the end are noticed.
"""

import contextlib
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tfdp import __version__
from tfdp.events import Event
from tfdp.ledger import codec
from tfdp.ledger.chain import KEYED, PLAIN, Chain, Row
from tfdp.ledger.entry import (
    MAX_COUNT,
    EntryStream,
    LedgerEntry,
    check_ledger_id,
    total_count,
)
from tfdp.ledger.errors import LedgerFormatError

# "tfdp" in ASCII.
APPLICATION_ID = 0x74666470
# Version of the tables.
SCHEMA_VERSION = 2

# Events whose text was met before are not decoded again, up to so many different ones.
_REMEMBERED = 4096

_MAGIC = b"SQLite format 3\x00"
_SCHEMA = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE entries (position INTEGER PRIMARY KEY, session TEXT NOT NULL, target INTEGER, "
    "count INTEGER NOT NULL, event TEXT, digest BLOB NOT NULL)",
)
_META = {
    "ledger_id",
    "dataset_id",
    "tfdp_version",
    "chain",
    "entry_count",
    "total_count",
    "head",
}


class Header(NamedTuple):
    """What a file says about itself.

    Attributes:
        ledger_id: 32 hexadecimal digits.
        dataset_id: Which data set the ledger is about, or None.
        keyed: Whether digests need a key.
        num_rows: How many rows there are.
        total_count: How many events they amount to.
        head: Head of the chain.
    """

    ledger_id: str
    dataset_id: str | None
    keyed: bool
    num_rows: int
    total_count: int
    head: str

    def meta(self) -> dict[str, str]:
        """Returns the rows of the table `meta`."""
        return {
            "ledger_id": self.ledger_id,
            "dataset_id": json.dumps(self.dataset_id),
            "tfdp_version": __version__,
            "chain": KEYED if self.keyed else PLAIN,
            "entry_count": str(self.num_rows),
            "total_count": str(self.total_count),
            "head": self.head,
        }


class Verified(NamedTuple):
    """What `verify` found.

    Attributes:
        header: Of the file, every number of which was checked, and the head unless `checked` is
            False.
        checked: Whether the digests were checked: not where they need a key and none was given.
    """

    header: Header
    checked: bool


# --- writing ---


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Puts the name of a file on the disk. Windows cannot open a folder, nor must it."""
    if os.name == "posix":
        _fsync(path.parent, os.O_RDONLY)


def encode_event(event: Event) -> str:
    """Returns the text of an event in a file."""
    return json.dumps(codec.encode(event), allow_nan=False)


def insert(connection: sqlite3.Connection, row: Row, digest: bytes) -> None:
    """Adds a row."""
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (*row, digest))


def put_head(connection: sqlite3.Connection, num_rows: int, total: int, head: str) -> None:
    """Says what the rows amount to."""
    values = {"entry_count": num_rows, "total_count": total, "head": head}
    connection.executemany(
        "UPDATE meta SET value = ? WHERE key = ?", [(str(v), k) for k, v in values.items()]
    )


def _write_new(
    path: Path, ledger_id: str, dataset_id: str | None, entries: Sequence[LedgerEntry], chain: Chain
) -> None:
    digest = chain.first
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in _SCHEMA:
            connection.execute(statement)
        for position, (event, count) in enumerate(entries):
            row = Row(position, "", None, count, encode_event(event))
            digest = chain.next(digest, row)
            insert(connection, row, digest)
        total = total_count(entries)
        head = chain.head(digest, len(entries), total)
        header = Header(ledger_id, dataset_id, chain.name == KEYED, len(entries), total, head)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", header.meta().items())


@contextlib.contextmanager
def _new_file(path: str | os.PathLike[str]) -> Iterator[tuple[Path, Path]]:
    """Yields the path, and one beside it that is gone afterwards."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"The folder of the ledger does not exist; create it. Received: path={path!r}."
        )
    try:
        yield target, temporary
    finally:
        temporary.unlink(missing_ok=True)


def write(path: str | os.PathLike[str], ledger_id: str, entries: Sequence[LedgerEntry]) -> None:
    """Writes the ledger to `path`, in place of what is there, all or nothing, and onto the disk."""
    with _new_file(path) as (target, temporary):
        _write_new(temporary, ledger_id, None, entries, Chain(ledger_id, None, None))
        _fsync(temporary, os.O_RDWR)
        os.replace(temporary, target)
    fsync_folder(target)


def create(path: str | os.PathLike[str], dataset_id: str | None, key: bytes | None) -> None:
    """Writes an empty ledger with a new id to `path`, unless there is a file."""
    ledger_id = uuid.uuid4().hex
    with _new_file(path) as (target, temporary):
        _write_new(temporary, ledger_id, dataset_id, (), Chain(ledger_id, dataset_id, key))
        _fsync(temporary, os.O_RDWR)
        with contextlib.suppress(FileExistsError):  # Another process was faster: that one counts.
            os.link(temporary, target)
    fsync_folder(target)


# --- reading ---


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turns what SQLite says about a damaged file into a `LedgerFormatError`."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise LedgerFormatError(
            f"{path} is truncated or corrupt, SQLite says: {error}. Restore it from a copy."
        ) from error


def check_magic(path: Path) -> None:
    """Raises LedgerFormatError where a file is no SQLite file at all."""
    with path.open("rb") as file:
        magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise LedgerFormatError(
            f"{path} is not a ledger: it does not begin as an SQLite file does. "
            "Give the file that PrivacyLedger.save wrote. An export is read by from_json_lines."
        )


@contextlib.contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as connection:
        yield connection


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise LedgerFormatError(
            f"{path} is the SQLite file of another application "
            f"(application_id={application_id:#x}). Give the file that PrivacyLedger.save wrote."
        )
    if version != SCHEMA_VERSION:
        raise LedgerFormatError(
            f"{path} has schema version {version}; this tfdp reads version {SCHEMA_VERSION}. "
            "Use the tfdp that wrote it, or a newer one."
        )
    problems = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise LedgerFormatError(f"{path} is corrupt: {problems[0]}. Restore it from a copy.")


def _number(meta: dict[str, str], name: str, path: Path) -> int:
    text = meta[name]
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 40):
        raise LedgerFormatError(f"{path} has a malformed header: {name}={text!r:.200}.")
    return int(text)


def read_header(connection: sqlite3.Connection, path: Path) -> Header:
    """Returns the header of a file that is a ledger of this version.

    Raises:
        LedgerFormatError: it is something else, or damaged.
    """
    _check_kind(connection, path)
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    if meta.keys() != _META:
        raise LedgerFormatError(
            f"{path} has a malformed header. Received: {sorted(map(str, meta))}."
        )
    dataset_id = codec.parse_json(str(meta["dataset_id"]), f"{path}, dataset_id")
    if not (dataset_id is None or isinstance(dataset_id, str)):
        raise LedgerFormatError(f"{path} has a malformed dataset_id. Received: {dataset_id!r:.200}")
    if meta["chain"] not in (PLAIN, KEYED):
        raise LedgerFormatError(f"{path} has an unknown kind of chain: {meta['chain']!r:.200}.")
    return Header(
        check_ledger_id(meta["ledger_id"], str(path)),
        dataset_id,
        meta["chain"] == KEYED,
        _number(meta, "entry_count", path),
        _number(meta, "total_count", path),
        str(meta["head"]),
    )


def make_chain(header: Header, key: bytes | None, path: Path) -> Chain | None:
    """Returns the chain of the file; None where it needs a key and there is none.

    Raises:
        LedgerFormatError: there is a key, and the file has none.
    """
    if key is not None and not header.keyed:
        raise LedgerFormatError(
            f"{path} was written without a key, so that anybody could have written it. Leave the "
            "key out to check the chain alone."
        )
    if key is None and header.keyed:
        return None
    return Chain(header.ledger_id, header.dataset_id, key)


class RowReader:
    """Reads rows one after another and checks that each follows from those before.

    Attributes:
        num_rows: How many were read.
        total_count: How many events they amount to.
        digest: Of the last one.
    """

    def __init__(self, path: Path, chain: Chain | None):
        self._path = path
        self._chain = chain
        self._events: dict[str, Event] = {}
        self.num_rows = self.total_count = 0
        self.digest = b"" if chain is None else chain.first

    def rows(self, connection: sqlite3.Connection) -> Iterator[tuple[Row, bytes]]:
        """Yields the rows that were not read yet, and their digests."""
        with sqlite_errors(self._path):
            rows = connection.execute(
                "SELECT position, session, target, count, event, digest FROM entries "
                "WHERE position >= ? ORDER BY position",
                (self.num_rows,),
            )
            for *fields, digest in rows:
                row = Row(*fields)
                self._check(row, digest)
                self.digest = digest
                self.num_rows += 1
                self.total_count += row.count if row.target is None else -row.count
                yield row, digest

    def _check(self, row: Row, digest: object) -> None:
        follows = self._chain is None or self._chain.next(self.digest, row) == digest
        given_back = row.target is not None
        if row.position != self.num_rows:
            problem = f"is missing; the next one is {row.position}. Restore it from a copy."
        elif not follows:
            keyed = self._chain is not None and self._chain.name == KEYED
            problem = (
                "does not follow from the entries before it: it was edited, reordered or taken "
                "from another ledger, or one just before it was dropped"
                f"{', or the key is another one' if keyed else ''}. Restore it from a copy."
            )
        elif not isinstance(digest, bytes) or not isinstance(row.session, str):
            problem = f"is malformed. Received: {row!r:.300}."
        elif not isinstance(row.count, int) or not 1 <= row.count <= MAX_COUNT:
            problem = f": count must be an integer of at least 1. Received: {row.count!r:.200}."
        elif given_back and not (
            isinstance(row.target, int) and 0 <= row.target < row.position and row.event is None
        ):
            problem = f"gives back what was not taken: {row!r:.300}."
        elif not given_back and not isinstance(row.event, str):
            problem = f": event must be text. Received: {row.event!r:.200}."
        else:
            return
        space = "" if problem.startswith(":") else " "
        raise LedgerFormatError(f"{self._path}, entry {self.num_rows}{space}{problem}")

    def entry(self, row: Row) -> LedgerEntry:
        """Returns the entry of a row that takes nothing back."""
        text = str(row.event)
        event = self._events.get(text)
        if event is None:
            where = f"{self._path}, entry {row.position}"
            event = codec.decode(codec.parse_json(text, where), f"{where}: event")
            if len(self._events) == _REMEMBERED:
                self._events.clear()
            self._events[text] = event
        return LedgerEntry(event, row.count)

    def check_end(self, header: Header) -> None:
        """Raises LedgerFormatError, unless the rows so far are all that the header counts."""
        found = {"entry_count": self.num_rows, "total_count": self.total_count}
        said = {"entry_count": header.num_rows, "total_count": header.total_count}
        for name, number in found.items():
            if said[name] != number:
                raise LedgerFormatError(
                    f"{self._path} was truncated or edited: its header says {name}={said[name]}, "
                    f"but it holds {number}. Restore it from a copy."
                )
        if self.total_count > MAX_COUNT:
            raise LedgerFormatError(f"{self._path} counts more than {MAX_COUNT} events.")
        if self._chain is None:
            return
        if self._chain.head(self.digest, self.num_rows, self.total_count) != header.head:
            raise LedgerFormatError(
                f"{self._path} was truncated after entry {self.num_rows - 1}, or its head was "
                "edited. Restore it from a copy."
            )


def taken_back(connection: sqlite3.Connection, path: Path) -> dict[int, Row]:
    """Returns, by their targets, the rows that take something back.

    Raises:
        LedgerFormatError: two of them have the same target.
    """
    rows: dict[int, Row] = {}
    found = connection.execute(
        "SELECT position, session, target, count, event FROM entries WHERE target IS NOT NULL"
    )
    for fields in found:
        row = Row(*fields)
        if rows.setdefault(row.target, row) is not row:  # type: ignore[arg-type]
            raise LedgerFormatError(f"{path}, entry {row.position} gives back a second time.")
    return rows


def net_entry(entry: LedgerEntry, row: Row, back: Row | None, path: Path) -> LedgerEntry | None:
    """Returns the entry of `row` without what another row takes back of it; None if nothing is
    left.

    Raises:
        LedgerFormatError: that is not the same session's, or takes too much.
    """
    if back is None:
        return entry
    if back.session != row.session:
        raise LedgerFormatError(f"{path}, entry {back.position} gives back what is not its own.")
    if back.count > entry.count:
        raise LedgerFormatError(f"{path}, entry {back.position} gives back more than there was.")
    left = entry.count - back.count
    return LedgerEntry(entry.event, left) if left else None


def _entries(
    connection: sqlite3.Connection, path: Path, header: Header, chain: Chain | None
) -> Iterator[LedgerEntry]:
    reader = RowReader(path, chain)
    with sqlite_errors(path):
        back = taken_back(connection, path)
    for row, _ in reader.rows(connection):
        if row.target is None:
            entry = net_entry(reader.entry(row), row, back.pop(row.position, None), path)
            if entry is not None:
                yield entry
    reader.check_end(header)
    if back:
        raise LedgerFormatError(
            f"{path}, entry {next(iter(back.values())).position} gives back what was not taken."
        )


@contextlib.contextmanager
def _opened(
    path: str | os.PathLike[str], key: bytes | None
) -> Iterator[tuple[Header, Chain | None, Iterator[LedgerEntry]]]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no ledger at {path}. Give the file that PrivacyLedger.save wrote."
        )
    check_magic(path)
    with _open(path) as connection:
        # One transaction: a writer that goes on meanwhile is not seen.
        with sqlite_errors(path):
            connection.execute("BEGIN")
            header = read_header(connection, path)
        chain = make_chain(header, key, path)
        yield header, chain, _entries(connection, path, header, chain)


@contextlib.contextmanager
def open_entries(path: str | os.PathLike[str], key: bytes | None = None) -> Iterator[EntryStream]:
    """Opens the file, read-only, to go through its entries one by one.

    Raises:
        FileNotFoundError: there is no such file.
        LedgerFormatError: the file is not a ledger, or is damaged; the message says what to do.
            Damage further back is found when the entries are gone through.
    """
    with _opened(path, key) as (header, _, entries):
        yield EntryStream(header.ledger_id, entries)


def read(path: str | os.PathLike[str], key: bytes | None = None) -> tuple[str, list[LedgerEntry]]:
    """Returns the ledger id and the entries of the file, which is opened read-only.

    Raises:
        FileNotFoundError: there is no such file.
        LedgerFormatError: the file is not a ledger, or is damaged; the message says what to do.
    """
    with open_entries(path, key) as stream:
        return stream.ledger_id, list(stream.entries)


def verify(
    path: str | os.PathLike[str], key: bytes | None = None, head: str | None = None
) -> Verified:
    """Reads the whole file and checks every row.

    Args:
        path: The file.
        key: That it was written with.
        head: Of an earlier state of the ledger, which must be part of this one.

    Raises:
        FileNotFoundError: there is no such file.
        LedgerFormatError: it is not a ledger, or was changed; the message names the first entry
            that is not as it was written. Or it never had that head.
        ValueError: heads cannot be compared, because the digests need a key.
    """
    with _opened(path, key) as (header, chain, entries):
        for _ in entries:
            pass
        if head is None:
            return Verified(header, chain is not None)
    if chain is None:
        raise ValueError(f"{path} was written with a key: an earlier head is checked with it.")
    with _open(Path(path)) as connection:
        reader = RowReader(Path(path), chain)
        found = head == chain.head(reader.digest, 0, 0)
        for _ in reader.rows(connection):
            found |= head == chain.head(reader.digest, reader.num_rows, reader.total_count)
    if not found:
        raise LedgerFormatError(
            f"{path} never had the head {head:.80}: it was rolled back, or rewritten."
        )
    return Verified(header, True)
