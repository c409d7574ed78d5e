"""What a ledger file says of itself, and what it may hold."""

import sqlite3

import pytest

from tfdp.ledger import LedgerFormatError
from tfdp.ledger.storage.schema import (
    MAX_DATASET_ID_CHARACTERS,
    TABLES,
    check_dataset_id,
    check_tables,
)


@pytest.fixture
def connection():
    with sqlite3.connect(":memory:") as connection:
        for sql in TABLES.values():
            connection.execute(sql)
        yield connection
    connection.close()


def test_tables_as_they_are_made_are_accepted(connection):
    check_tables(connection, "x.ledger")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE more (a)",
        "CREATE VIEW more AS SELECT 1",
        "CREATE INDEX more ON entries (count)",
        "CREATE TRIGGER more AFTER INSERT ON meta BEGIN DELETE FROM meta; END",
    ],
)
def test_anything_else_in_the_file_is_refused(connection, sql):
    connection.execute(sql)
    with pytest.raises(LedgerFormatError, match="nothing else"):
        check_tables(connection, "x.ledger")


@pytest.mark.parametrize("value", ["CAST(type AS BLOB)", "NULL", "7"])
def test_values_that_cannot_be_ordered_are_refused_too(connection, value):
    """A bit of the file makes bytes of a text."""
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(f"UPDATE sqlite_master SET type = {value} WHERE name = 'meta'")
    with pytest.raises(LedgerFormatError, match="nothing else"):
        check_tables(connection, "x.ledger")


@pytest.mark.parametrize("name", sorted(TABLES))
def test_missing_table_is_named(connection, name):
    connection.execute(f"DROP TABLE {name}")
    with pytest.raises(LedgerFormatError, match=f"no such table as {name}"):
        check_tables(connection, "x.ledger")


def test_data_sets_have_short_names():
    check_dataset_id(None)
    check_dataset_id("x" * MAX_DATASET_ID_CHARACTERS)
    with pytest.raises(ValueError, match="at most"):
        check_dataset_id("x" * (MAX_DATASET_ID_CHARACTERS + 1))
    for wrong in ("", 7, b"x"):
        with pytest.raises(TypeError, match="dataset_id must be text"):
            check_dataset_id(wrong)
