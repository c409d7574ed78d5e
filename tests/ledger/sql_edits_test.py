"""Whoever can write SQL into a ledger file is found, or has made the ledger more expensive.

Edits here are statements that SQLite carries out, so the file is a sound one for SQLite. What must
hold: a reader refuses the file by name, or every event of the ledger still counts, at least as
often. Asked of: a file with a key, of which the edited digests can be computed anew only with
another key; and one without a key, whose digests can all be computed anew, but not so that the head
is the one that was noted.
"""

import collections
import contextlib
import random
import sqlite3

import pytest

from tests.ledger.reseal import reseal
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import LedgerFormatError, PrivacyLedger, storage

KEY = bytes(range(32))
EVENTS = [
    SampledEvent(PoissonSampling(0.01, 60_000), GaussianSumEvent(1.0, 1.0 + i)) for i in range(3)
]


@pytest.fixture(scope="module", params=[None, KEY], ids=["plain", "keyed"])
def original(request, tmp_path_factory):
    """Yields (bytes of a closed ledger, key, head, count of each event)."""
    path, key = tmp_path_factory.mktemp("original") / "run.ledger", request.param
    for opening in range(3):
        with PrivacyLedger.open(path, create=True, key=key, lease=8) as ledger:
            for number in (8, 5, 3)[: opening + 1]:
                for _ in range(number):
                    ledger.append(EVENTS[(number + opening) % 3])
    with storage.open_entries(path, key) as stream:
        counts = _counts(stream.entries)
    assert sum(counts.values()) == 8 + 8 + 5 + 8 + 5 + 3
    return path.read_bytes(), key, storage.verify(path, key).header.head, counts


def _counts(entries):
    counts = collections.Counter()
    for event, count in entries:
        counts[event] += count
    return counts


def _carry_out(path, statements):
    """Returns whether SQLite carried them out."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        try:
            for statement in statements:
                connection.execute(statement)
        except (sqlite3.Error, OverflowError):
            return False
    return True


def _has_tables(path):
    """Whether rows can be written where they are read (some views never end)."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        try:
            kinds = dict(connection.execute("SELECT name, type FROM sqlite_master"))
        except sqlite3.Error:
            return False
        return kinds.get("entries") == kinds.get("meta") == "table"


def _check(path, key, head, counts, write):
    """Raises AssertionError, unless the file is refused or holds no less.

    Returns how many of reader and, if `write`, writer refused it.
    """
    refused = 0
    try:
        storage.verify(path, key, head)
        with storage.open_entries(path, key) as stream:
            found = _counts(stream.entries)
        assert found >= counts, "verified, and cheaper"
    except LedgerFormatError:
        refused += 1
    try:
        if not write or (refused and head is not None):
            return refused  # Where all was rewritten without a key only the head shows it.
        with PrivacyLedger.open(path, key=key, lease=8) as ledger:
            assert _counts(ledger) >= counts, "continued, and cheaper"
            ledger.append(EVENTS[0])
        with storage.open_entries(path, key) as stream:
            assert _counts(stream.entries) >= counts + collections.Counter([EVENTS[0]])
    except LedgerFormatError:
        refused += 1
    return refused


def _attempt(tmp_path, original, statements, write=True):
    """Checks an edit as it is, and with all digests computed anew; returns how often refused."""
    data, key, head, counts = original
    path, refused = tmp_path / "run.ledger", []
    for forged in (False, True):
        path.write_bytes(data)
        path.with_name("run.ledger-journal").unlink(missing_ok=True)
        if not _carry_out(path, statements):
            return None
        if forged:
            if not _has_tables(path):
                continue
            try:
                reseal(path, counts=True, key=None if key is None else KEY[::-1])
            except (sqlite3.Error, AttributeError, TypeError, UnicodeError):
                continue
        refused.append(_check(path, key, head if forged and key is None else None, counts, write))
    return refused


_S = "(SELECT session FROM entries WHERE position = 0)"
_LAST = "(SELECT max(position) FROM entries)"
_COLUMNS = "position, session, target, count, event, digest"


def _rebuilt(definition, columns=_COLUMNS, more=()):
    return (
        "ALTER TABLE entries RENAME TO old",
        f"CREATE TABLE entries ({definition}",
        f"INSERT INTO entries ({columns}) SELECT {columns} FROM old",
        "DROP TABLE old",
        *more,
    )


_FIELDS = "session TEXT NOT NULL, target INTEGER, count INTEGER NOT NULL, event TEXT, digest BLOB"
NAMED = {
    "give-back before the first row": (
        f"INSERT INTO entries VALUES (-1, {_S}, 0, 4, NULL, x'00')",
    ),
    "give-back at a position of NULL": _rebuilt(
        f"position INTEGER, {_FIELDS} NOT NULL)",
        more=(f"INSERT INTO entries VALUES (NULL, {_S}, 0, 4, NULL, x'00')",),
    ),
    "give-back at a position that is text": _rebuilt(
        f"position INT PRIMARY KEY, {_FIELDS} NOT NULL)",
        more=(f"INSERT INTO entries VALUES ('a', {_S}, 0, 4, NULL, x'00')",),
    ),
    "give-back far behind": (f"INSERT INTO entries VALUES (1000, {_S}, 0, 4, NULL, x'00')",),
    "give-back of an old lease": (
        f"INSERT INTO entries SELECT {_LAST} + 1, session, 0, 4, NULL, digest FROM entries LIMIT 1",
    ),
    "give-back of the last lease": (
        f"INSERT INTO entries SELECT {_LAST} + 1, session, position, count - 1, NULL, digest "
        f"FROM entries WHERE event IS NOT NULL ORDER BY position DESC LIMIT 1",
    ),
    "give-back instead of the one that ends a lease": (
        f"UPDATE entries SET count = 7 WHERE position = {_LAST}",
    ),
    "give-back of nothing": (
        f"INSERT INTO entries SELECT {_LAST} + 1, session, position, 0, NULL, digest "
        "FROM entries WHERE event IS NOT NULL ORDER BY position DESC LIMIT 1",
    ),
    "trigger that removes": (
        "CREATE TRIGGER t AFTER INSERT ON entries BEGIN "
        "UPDATE entries SET count = 1 WHERE position = 0; END",
    ),
    "trigger that gives back": (
        "CREATE TRIGGER t AFTER INSERT ON entries WHEN new.position > 0 BEGIN "
        "INSERT OR IGNORE INTO entries VALUES (-new.position, new.session, 0, 4, NULL, x'00'); END",
    ),
    "trigger on the head": (
        "CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM entries WHERE position > 3; END",
    ),
    "view": (
        "ALTER TABLE entries RENAME TO real",
        f"CREATE VIEW entries AS SELECT {_COLUMNS} FROM real UNION ALL "
        "SELECT -1, session, 0, 4, NULL, x'00' FROM real WHERE position = 0",
    ),
    "view that never ends": (
        "ALTER TABLE entries RENAME TO real",
        "CREATE VIEW entries AS WITH RECURSIVE c(position) AS "
        "(SELECT 0 UNION ALL SELECT position + 1 FROM c) SELECT position, '' AS session, "
        "NULL AS target, 1 AS count, '{}' AS event, zeroblob(1000000000) AS digest FROM c",
    ),
    "view of the header": (
        "ALTER TABLE meta RENAME TO real",
        "CREATE VIEW meta AS SELECT key, CASE key WHEN 'total_count' THEN '1' ELSE value END value "
        "FROM real",
    ),
    "index": ("CREATE INDEX i ON entries(position, session, target, count, event, digest)",),
    "index of a part": (
        "CREATE INDEX i ON entries(position) WHERE position > 2",
        "ANALYZE",
    ),
    "index that differs": (
        "CREATE INDEX i ON entries(target)",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE INDEX i ON entries(count)' WHERE name = 'i'",
    ),
    "hidden index": (
        "CREATE INDEX i ON entries(target)",
        "PRAGMA writable_schema = ON",
        "DELETE FROM sqlite_master WHERE name = 'i'",
    ),
    "another table": ("CREATE TABLE more (x)",),
    "statistics": ("ANALYZE",),
    "without rowid": _rebuilt(f"position INTEGER PRIMARY KEY, {_FIELDS} NOT NULL) WITHOUT ROWID"),
    "numbers without affinity": _rebuilt(
        "position INTEGER PRIMARY KEY, session, target, count, event, digest)",
        more=("UPDATE entries SET count = '1' WHERE position = 0",),
    ),
    "position in descending order": _rebuilt(
        f"position INTEGER PRIMARY KEY DESC, {_FIELDS} NOT NULL)"
    ),
    "generated count": _rebuilt(
        "position INTEGER PRIMARY KEY, session TEXT, target INTEGER, count AS (1), event TEXT, "
        "digest BLOB)",
        "position, session, target, event, digest",
    ),
    "more columns": ("ALTER TABLE entries ADD COLUMN count2 INTEGER DEFAULT 1",),
    "another name for a column": (
        "ALTER TABLE entries RENAME COLUMN count TO c",
        "ALTER TABLE entries RENAME COLUMN target TO count",
        "ALTER TABLE entries RENAME COLUMN c TO target",
    ),
    "roots exchanged": (
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = 5 - rootpage",
    ),
    "one root for two": (
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = 3 WHERE name = 'meta'",
    ),
    "an empty root": (
        "CREATE TABLE entries2 (position INTEGER PRIMARY KEY, session TEXT NOT NULL, target "
        "INTEGER, count INTEGER NOT NULL, event TEXT, digest BLOB NOT NULL)",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE "
        "name = 'entries2') WHERE name = 'entries'",
        "DELETE FROM sqlite_master WHERE name = 'entries2'",
    ),
    "count of infinity": ("UPDATE entries SET count = 9e999 WHERE position = 0",),
    "largest count": (f"UPDATE entries SET count = {2**63 - 1} WHERE position = 0",),
    "negative count": ("UPDATE entries SET count = -5 WHERE position = 0",),
    "no rows": (
        "DELETE FROM entries",
        "UPDATE meta SET value = '0' WHERE key IN ('entry_count', 'total_count')",
    ),
    "no entry of the header": ("DELETE FROM meta WHERE key = 'head'",),
    "header of blobs": ("UPDATE meta SET value = CAST(value AS BLOB)",),
    "long header": ("UPDATE meta SET value = value || printf('%.2000000c', 'x')",),
    "long event": ("UPDATE entries SET event = event || printf('%.2000000c', ' ')",),
    "long session": ("UPDATE entries SET session = printf('%.2000000c', 'a')",),
    "key dropped": ("UPDATE meta SET value = 'sha256' WHERE key = 'chain'",),
    "version of old": ("PRAGMA user_version = 2",),
    "auto-vacuum": ("PRAGMA auto_vacuum = FULL", "VACUUM"),
    "encoding": ("PRAGMA encoding = 'UTF-16le'", "VACUUM"),
    "log": ("PRAGMA journal_mode = WAL",),
}
# Edits that change nothing of what the ledger says; the second, where it has no key.
_HARMLESS = {"version of old", "auto-vacuum", "encoding"}
_HARMLESS_IF_PLAIN = {"key dropped"}


@pytest.mark.parametrize("name", NAMED)
def test_edit_is_found(tmp_path, original, name):
    refused = _attempt(tmp_path, original, NAMED[name])
    if name in _HARMLESS or (name in _HARMLESS_IF_PLAIN and original[1] is None):
        assert refused is not None
    else:
        assert refused and refused[0] == 2, f"{name} was not noticed: {refused}"


def _random_edit(generator, num_rows):
    position = generator.choice([*range(num_rows), num_rows, -1, 10**6, 2**63 - 1])
    value = generator.choice(
        ["NULL", "-1", "0", "1", "4", "7", "8", "2", "9e999", "1.5", "'x'", "''", "x''", "x'00'"]
        + [
            f"(SELECT {c} FROM entries WHERE position = {generator.randrange(num_rows)})"
            for c in ("session", "target", "count", "event", "digest", "position")
        ]
        + [
            "replace(event, '1.0', '9.0')",
            "replace(event, '0.01', '0.001')",
            "CAST(event AS BLOB)",
            "count + 1",
            "count - 1",
            "CAST(count AS TEXT)",
            "target + 1",
            "zeroblob(100)",
        ]
    )
    plain = value if "SELECT" in value or value[0] in "N-0123456789'xz" else "1"
    column = generator.choice(_COLUMNS.split(", "))
    where = generator.choice(
        [
            f"position = {position}",
            f"position >= {position}",
            "target IS NULL",
            "target IS NOT NULL",
            "1",
        ]
    )
    key = generator.choice(
        ["entry_count", "total_count", "head", "ledger_id", "dataset_id", "chain", "tfdp_version"]
    )
    s = f"(SELECT session FROM entries WHERE position = {generator.randrange(num_rows)})"
    return generator.choice([
        f"INSERT INTO entries VALUES ({position}, {s}, {generator.randrange(num_rows)}, "
        f"{generator.randrange(9)}, NULL, {generator.choice([plain, 'zeroblob(32)'])})",
        f"INSERT INTO entries SELECT {_LAST} + 1, session, {generator.choice(['NULL', 'position'])}"
        f", {generator.randrange(9)}, {generator.choice(['NULL', 'event'])}, digest FROM entries "
        f"WHERE position = {generator.randrange(num_rows)}",
        f"INSERT OR REPLACE INTO entries SELECT {position}, session, target, count, event, digest "
        f"FROM entries WHERE position = {generator.randrange(num_rows)}",
        f"UPDATE OR REPLACE entries SET {column} = {value} WHERE {where}",
        f"UPDATE OR REPLACE entries SET {column} = {value} WHERE {where}",
        f"DELETE FROM entries WHERE {where}",
        f"UPDATE meta SET value = {plain} WHERE key = '{key}'",
        f"UPDATE meta SET value = value - 1 WHERE key = '{key}'",
        f"INSERT OR REPLACE INTO meta VALUES ('{key}', {plain})",
        f"CREATE TRIGGER t{generator.randrange(9)} AFTER {generator.choice(['INSERT', 'UPDATE'])} "
        f"ON {generator.choice(['entries', 'meta'])} BEGIN DELETE FROM entries WHERE {where}; END",
        f"CREATE INDEX i{generator.randrange(9)} ON entries({column}) WHERE {where}",
        f"CREATE VIEW v{generator.randrange(9)} AS SELECT * FROM entries WHERE {where}",
    ])  # fmt: skip


def test_random_edits_are_found_or_cost_more(tmp_path, original):
    generator = random.Random(0)
    num_rows = storage.verify(_written(tmp_path, original), original[1]).header.num_rows
    tried = noticed = 0
    while tried < 200:
        statements = [_random_edit(generator, num_rows) for _ in range(generator.choice([1, 1, 2]))]
        try:
            refused = _attempt(tmp_path, original, statements, write=tried % 8 == 0)
        except AssertionError as error:
            raise AssertionError(f"{error}: {statements}") from error
        if refused:
            tried += 1
            noticed += refused[0] > 0
    assert noticed > 120  # The others change nothing, such as a deletion of no row.


def _written(tmp_path, original):
    path = tmp_path / "run.ledger"
    path.write_bytes(original[0])
    return path


def test_what_was_forged_while_it_is_open_is_found_at_the_next_lease(tmp_path, original):
    data, key, _, _ = original
    for name in ("trigger that gives back", "give-back before the first row", "another table",
                 "no entry of the header", "give-back of an old lease"):  # fmt: skip
        path = tmp_path / "run.ledger"
        path.write_bytes(data)
        with PrivacyLedger.open(path, key=key, lease=1) as ledger:
            ledger.append(EVENTS[1])
            assert _carry_out(path, NAMED[name])
            with pytest.raises(LedgerFormatError):
                ledger.append(EVENTS[1])


def test_head_of_a_closed_ledger_cannot_be_undercut_by_whoever_appends(tmp_path, original):
    """Every lease is ended by a row of its own, so that nothing is left to give back."""
    path = _written(tmp_path, original)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT position, session, target, count FROM entries").fetchall()
    last = {session: (target, position) for position, session, target, _ in rows}
    assert all(target is not None for target, _ in last.values())


def test_table_that_counts_other_rows_than_are_found_is_refused(tmp_path, original):
    """SQLite counts rows by another way than that by which it finds them."""
    with storage.open_book(_written(tmp_path, original), original[1]) as book:
        more = book._replace(extent=book.extent._replace(num_rows=book.extent.num_rows + 1))
        with pytest.raises(LedgerFormatError, match="counts .* entries, and .* are found"):
            more.check()
