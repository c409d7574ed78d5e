"""Reading a ledger file: everything is checked first, then it is gone through entry by entry."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tfdp.ledger.chain import Chain, Row
from tfdp.ledger.entry import EntryStream, Evidence, LedgerEntry
from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage.files import open_as_it_stands, open_read_only, sqlite_errors
from tfdp.ledger.storage.rows import RowReader
from tfdp.ledger.storage.schema import (
    Extent,
    Header,
    check_integrity,
    make_chain,
    read_extent,
    read_header,
)

# A commit writes two rows at most: one that settles a lease, and the next lease.
_ROWS_OF_A_COMMIT = 2


class Book(NamedTuple):
    """A ledger file that is open for reading, as it is at one moment.

    Attributes:
        path: The file.
        connection: To it, or to a copy.
        header: What it says of itself.
        extent: What its table of rows says.
        chain: None where it needs a key and there is none.
        outlived: Whether a journal beside the file, which is whole, was left out.
    """

    path: Path
    connection: sqlite3.Connection
    header: Header
    extent: Extent
    chain: Chain | None
    outlived: bool = False

    @property
    def evidence(self) -> Evidence:
        """What speaks for the rows, once they were checked."""
        if not self.header.keyed:
            return Evidence.DIGESTS
        return Evidence.KEY_NOT_GIVEN if self.chain is None else Evidence.KEY

    def reader(self) -> RowReader:
        """Returns a reader that has read nothing yet."""
        return RowReader(self.path, self.chain)

    def rows(self, reader: RowReader) -> Iterator[tuple[Row, bytes]]:
        """Yields all rows, checked, and checks at the end that there are no others."""
        yield from reader.rows(self.connection, self.extent.end)
        reader.check_end(self.header, self.extent)

    def check(self) -> RowReader:
        """Returns a reader that has read, and checked, all rows."""
        reader = self.reader()
        for _ in self.rows(reader):
            pass
        return reader

    def entries(self, checked: RowReader | None = None) -> Iterator[LedgerEntry]:
        """Yields what happened, without what was given back later.

        Args:
            checked: What `check` returned; by default all rows are checked first.
        """
        given_back = (checked or self.check()).given_back
        reader = self.reader()
        for row, _ in self.rows(reader):
            if row.target is None:
                event, count = reader.entry(row)
                yield LedgerEntry(event, count - given_back[row.position])


def _book(connection: sqlite3.Connection, path: Path, key: bytes | None) -> Book:
    # One transaction: a writer that goes on meanwhile is not seen.
    with sqlite_errors(path):
        connection.execute("BEGIN")
        header = read_header(connection, path)
        check_integrity(connection, path)
        extent = read_extent(connection, path)
        connection.execute("COMMIT")
    return Book(path, connection, header, extent, make_chain(header, key, path))


@contextlib.contextmanager
def open_book(path: str | os.PathLike[str], key: bytes | None = None) -> Iterator[Book]:
    """Opens the file, read-only.

    Args:
        path: The file.
        key: That it was written with.

    Edge cases:
        A journal that was left beside a file that is whole undoes nothing: the commit that was cut
        short counts, and so does what was added to the file while it was elsewhere.

    Raises:
        FileNotFoundError: there is no such file.
        TimeoutError: another process holds it.
        LedgerFormatError: the file is not a ledger, or is damaged; the message says what to do.
            Damage further back is found when its rows are gone through.
    """
    path = Path(os.path.realpath(path))  # A journal stands beside the file itself.
    with contextlib.ExitStack() as stack:
        connection, undone = stack.enter_context(open_read_only(path))
        book = _book(connection, path, key)
        if undone:
            whole = stack.enter_context(open_as_it_stands(path))
            book = _as_it_stands(whole, book, key) or book
        yield book


def _as_it_stands(connection: sqlite3.Connection, undone: Book, key: bytes | None) -> Book | None:
    """Returns the file without its journal, or None where it is not whole.

    Raises:
        LedgerFormatError: undoing would lose more than the commit that was cut short. Such a
            journal came from elsewhere.
    """
    path = undone.path
    try:
        book = _book(connection, path, key)
        num_rows = book.check().num_rows
    except LedgerFormatError:
        return None  # Written in part, which is what the journal is for.
    lost = num_rows - undone.header.num_rows
    if not 0 <= lost <= _ROWS_OF_A_COMMIT:
        raise LedgerFormatError(
            f"{path} is whole and holds {num_rows} entries, but {path.name}-journal beside it "
            f"would make {undone.header.num_rows} of them: it belongs to "
            f"{'an older' if lost > 0 else 'another'} copy. Move it away."
        )
    return book._replace(outlived=True)


@contextlib.contextmanager
def open_entries(path: str | os.PathLike[str], key: bytes | None = None) -> Iterator[EntryStream]:
    """Opens the file, read-only, to go through its entries one by one.

    Raises:
        Exception: as `open_book`.
    """
    with open_book(path, key) as book:
        yield EntryStream(
            book.header.ledger_id, book.entries(), book.evidence, book.header.dataset_id
        )
