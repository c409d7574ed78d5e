"""What a ledger file holds, exactly.

Tables: `meta(key, value)`, and `entries(position, session, target, count, event, digest)` with the
fields of `chain.Row` and its digest. The file is marked by `application_id` and versioned by
`user_version`. `meta` holds the ids, the kind of chain, and the head of the chain with what it
covers, so that rows missing at the end are noticed. Nothing else may be in the file: what SQLite
would run or read in place of these tables (views, triggers, indexes, generated columns) could say
anything.
"""

import json
import re
import sqlite3
from pathlib import Path
from typing import NamedTuple

from tfdp import __version__
from tfdp.ledger import codec
from tfdp.ledger.chain import KEYED, PLAIN, Chain
from tfdp.ledger.entry import check_ledger_id
from tfdp.ledger.errors import LedgerFormatError

# "tfdp" in ASCII.
APPLICATION_ID = 0x74666470
# Version of the tables. Version 2 has the same ones, but leases that were used up end in no row.
SCHEMA_VERSION = 3
READABLE_VERSIONS = (2, 3)

TABLES = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "entries": "CREATE TABLE entries (position INTEGER PRIMARY KEY, session TEXT NOT NULL, "
    "target INTEGER, count INTEGER NOT NULL, event TEXT, digest BLOB NOT NULL)",
}
STATEMENTS = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
    *TABLES.values(),
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

# Far above what training needs, far below what would occupy a machine. Writers keep them, too.
MAX_ROWS = 10_000_000
MAX_FILE_BYTES = 2**32
MAX_DATASET_ID_CHARACTERS = 1000


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


def check_dataset_id(dataset_id: object) -> None:
    """Raises unless a ledger may have this `dataset_id`.

    Raises:
        TypeError: it is neither text nor None, or empty.
        ValueError: it is too long.
    """
    if not (dataset_id is None or (isinstance(dataset_id, str) and dataset_id)):
        raise TypeError(f"dataset_id must be text. Received: dataset_id={dataset_id!r}.")
    if dataset_id is not None and len(dataset_id) > MAX_DATASET_ID_CHARACTERS:
        raise ValueError(
            f"dataset_id must have at most {MAX_DATASET_ID_CHARACTERS} characters. "
            f"Received: {len(dataset_id)}."
        )


def check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Raises LedgerFormatError, unless the file holds our two tables, to the letter, and no more.

    What SQLite has in its own table of contents is asked for before anything that is in there.
    """
    found = connection.execute(
        "SELECT type, name, tbl_name, substr(sql, 1, 1000) FROM sqlite_master LIMIT 3"
    ).fetchall()
    names = {row[1] for row in found}
    if not names.issuperset(TABLES):
        missing = sorted(TABLES.keys() - names)
        raise LedgerFormatError(
            f"{path} has no such table as {missing[0]}: it is no ledger, or damaged."
        )
    ours = {("table", name, name, sql) for name, sql in TABLES.items()}
    if len(found) != len(ours) or set(found) != ours:
        what = [f"{row[0]!s:.20} {row[1]!r:.80}" for row in found]
        raise LedgerFormatError(
            f"{path} was edited: it must hold the tables meta and entries, as tfdp makes them, and "
            f"nothing else (no view, trigger, index or other table). It holds: {', '.join(what)}. "
            "Restore it from a copy."
        )


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise LedgerFormatError(
            f"{path} is the SQLite file of another application "
            f"(application_id={application_id:#x}). Give the file that PrivacyLedger.save wrote."
        )
    if version not in READABLE_VERSIONS:
        raise LedgerFormatError(
            f"{path} has schema version {version}; this tfdp reads versions "
            f"{', '.join(map(str, READABLE_VERSIONS))}. Use the tfdp that wrote it, or a newer one."
        )
    check_tables(connection, path)


def check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Raises LedgerFormatError where SQLite's own structures contradict each other."""
    problems = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise LedgerFormatError(
            f"{path} is corrupt: {str(problems[0]).splitlines()[-1]:.200}. Restore it from a copy."
        )


def _number(meta: dict[str, str], name: str, path: Path) -> int:
    text = meta[name]
    if not (text.isascii() and text.isdigit() and len(text) < 40):
        raise LedgerFormatError(f"{path} has a malformed header: {name}={text!r:.200}.")
    return int(text)


def read_header(connection: sqlite3.Connection, path: Path) -> Header:
    """Returns the header of a file that is a ledger of a version that is read.

    Raises:
        LedgerFormatError: it is something else, or damaged.
    """
    _check_kind(connection, path)
    # One row more than there may be, and no more of a value than it may have (JSON escapes make up
    # to 12 characters of one).
    rows = connection.execute(
        "SELECT key, substr(value, 1, ?) FROM meta LIMIT ?",
        (12 * MAX_DATASET_ID_CHARACTERS + 100, len(_META) + 1),
    ).fetchall()
    meta = dict(rows)
    if meta.keys() != _META or len(rows) != len(_META):
        names = sorted(f"{key!s:.100}" for key in meta)
        raise LedgerFormatError(f"{path} has a malformed header. Received: {names}.")
    for key, value in meta.items():
        if not isinstance(value, str):
            raise LedgerFormatError(f"{path} has a malformed header: {key}={value!r:.200}.")
    dataset_id = codec.parse_json(meta["dataset_id"], f"{path}, dataset_id")
    try:
        check_dataset_id(dataset_id)
    except (TypeError, ValueError):
        raise LedgerFormatError(
            f"{path} has a malformed dataset_id. Received: {dataset_id!r:.200}"
        ) from None
    if meta["chain"] not in (PLAIN, KEYED):
        raise LedgerFormatError(f"{path} has an unknown kind of chain: {meta['chain']!r:.200}.")
    header = Header(
        check_ledger_id(meta["ledger_id"], str(path)),
        dataset_id,
        meta["chain"] == KEYED,
        _number(meta, "entry_count", path),
        _number(meta, "total_count", path),
        meta["head"],
    )
    if not re.fullmatch("[0-9a-f]{64}", header.head):
        raise LedgerFormatError(
            f"{path} has a malformed header, or its head was edited: head={header.head!r:.200}."
        )
    return header


class Extent(NamedTuple):
    """What the table of rows says of itself, by other ways through SQLite's tree than its rows.

    Attributes:
        num_rows: How many rows it counts.
        end: One more than the last position.
    """

    num_rows: int
    end: int


def read_extent(connection: sqlite3.Connection, path: Path) -> Extent:
    """Returns the extent of the rows.

    Raises:
        LedgerFormatError: there are too many, or one stands before the first.
    """
    found = connection.execute("SELECT count(*), min(position), max(position) FROM entries")
    count, first, last = found.fetchone()
    if count > MAX_ROWS:
        raise LedgerFormatError(f"{path} holds {count} entries; at most {MAX_ROWS} are read.")
    if count and first < 0:
        raise LedgerFormatError(
            f"{path}, entry {first} is at a position that no entry has. Restore it from a copy."
        )
    return Extent(count, last + 1 if count else 0)


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
