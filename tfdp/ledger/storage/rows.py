"""Rows of a ledger file, one after another: each must follow from those before."""

import re
import sqlite3
from array import array
from collections.abc import Iterator
from pathlib import Path

from tfdp.events import Event
from tfdp.ledger import codec
from tfdp.ledger.chain import KEYED, Chain, Row
from tfdp.ledger.codec import MAX_EVENT_CHARACTERS
from tfdp.ledger.entry import MAX_COUNT, LedgerEntry
from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage.files import sqlite_errors
from tfdp.ledger.storage.schema import Extent, Header

# Rows are fetched so many at a time, and the file is let go in between: who writes need not wait
# for a slow reader. No row ever changes, so that a read in parts is as good as one.
_CHUNK = 1000
# Events whose text was met before are not decoded again, up to so many characters of text.
_REMEMBERED_CHARACTERS = 2**20


class RowReader:
    """Reads rows one after another and checks that each follows from those before.

    Nothing counts that was not read here: neither what the file says of itself, nor rows that a
    query finds at another place.

    Attributes:
        num_rows: How many were read.
        total_count: How many events they amount to.
        digest: Of the last one.
        given_back: Of each row that was read, how many of its events did not happen after all.

    Args:
        path: The file, for messages.
        chain: Of the file; None where it needs a key and there is none.
    """

    def __init__(self, path: Path, chain: Chain | None):
        self._path = path
        self._chain = chain
        self._events: dict[str, Event] = {}
        self._remembered = 0  # Characters of their texts.
        # Session -> its last lease, as (position, count), while that is not settled.
        self._leases: dict[str, tuple[int, int]] = {}
        self._saved = True  # Whether all rows so far are those of `PrivacyLedger.save`.
        self.num_rows = self.total_count = 0
        self.digest = b"" if chain is None else chain.first
        self.given_back = array("q")

    def rows(
        self, connection: sqlite3.Connection, end: int | None = None
    ) -> Iterator[tuple[Row, bytes]]:
        """Yields the rows that were not read yet, and their digests.

        Args:
            connection: To the file.
            end: One more than the last position to read; None for all.
        """
        last = MAX_COUNT if end is None else end - 1
        while True:
            with sqlite_errors(self._path):
                # One character more than an event may have shows that it has too many.
                chunk = connection.execute(
                    "SELECT position, session, target, count, substr(event, 1, ?), digest "
                    "FROM entries WHERE position BETWEEN ? AND ? ORDER BY position LIMIT ?",
                    (MAX_EVENT_CHARACTERS + 1, self.num_rows, last, _CHUNK),
                ).fetchall()
            for *fields, digest in chunk:
                row = Row(*fields)
                self._check(row, digest)
                self.add(row, digest)
                yield row, digest
            if len(chunk) < _CHUNK:
                return

    def add(self, row: Row, digest: bytes) -> None:
        """Counts a row that was checked, or written, as read."""
        self.digest = digest
        self.num_rows += 1
        self.given_back.append(0)
        if row.target is None:
            self.total_count += row.count
            if row.session:
                self._saved = False
                self._leases[row.session] = (row.position, row.count)
        else:
            self.total_count -= row.count
            self.given_back[row.target] = row.count
            del self._leases[row.session]

    def _check(self, row: Row, digest: object) -> None:
        problem = self._problem(row, digest)
        if problem is not None:
            space = "" if problem.startswith(":") else " "
            raise LedgerFormatError(f"{self._path}, entry {self.num_rows}{space}{problem}")

    def _problem(self, row: Row, digest: object) -> str | None:
        follows = self._chain is None or self._chain.next(self.digest, row) == digest
        if row.position != self.num_rows:
            return f"is missing; the next one is {row.position}. Restore it from a copy."
        if not follows:
            keyed = self._chain is not None and self._chain.name == KEYED
            return (
                "does not follow from the entries before it: it was edited, reordered or taken "
                "from another ledger, or one just before it was dropped"
                f"{', or the key is another one' if keyed else ''}. Restore it from a copy."
            )
        if not (isinstance(digest, bytes) and len(digest) == 32):
            return f"is malformed: its digest has no 32 bytes. Received: {row!r:.300}."
        if not (isinstance(row.session, str) and re.fullmatch("([0-9a-f]{32})?", row.session)):
            return f"is malformed. Received: {row!r:.300}."
        if not row.session and not self._saved:
            return (
                f"is malformed: without a session, behind one that has one. Received: {row!r:.300}."
            )
        if row.target is not None:
            return self._problem_of_target(row)
        if not isinstance(row.count, int) or not 1 <= row.count <= MAX_COUNT:
            return f": count must be an integer of at least 1. Received: {row.count!r:.200}."
        if not isinstance(row.event, str):
            return f": event must be text. Received: {row.event!r:.200}."
        if len(row.event) > MAX_EVENT_CHARACTERS:
            return f": event has more than {MAX_EVENT_CHARACTERS} characters."
        return None

    def _problem_of_target(self, row: Row) -> str | None:
        """Only the last lease of a session is open, until it writes the next one or settles it.

        One event of a lease, at least, was the reason for it and has happened.
        """
        position, taken = self._leases.get(row.session, (None, 0))
        if row.event is not None or type(row.target) is not int or row.target != position:
            return (
                "gives back what was not taken: only the last lease of the same session can be "
                f"given back, and once. Received: {row!r:.300}."
            )
        if not isinstance(row.count, int) or not 0 <= row.count < taken:
            return f"gives back more than there was, or less than nothing. Received: {row!r:.300}."
        return None

    def entry(self, row: Row) -> LedgerEntry:
        """Returns the entry of a row that gives nothing back."""
        text = str(row.event)
        event = self._events.get(text)
        if event is None:
            where = f"{self._path}, entry {row.position}"
            event = codec.decode(codec.parse_json(text, where), f"{where}: event")
            self._remembered += len(text)
            if self._remembered > _REMEMBERED_CHARACTERS:
                self._events.clear()
                self._remembered = len(text)
            self._events[text] = event
        return LedgerEntry(event, row.count)

    def check_end(self, header: Header, extent: Extent) -> None:
        """Raises LedgerFormatError, unless the rows so far are all that the file counts."""
        found = {"entry_count": self.num_rows, "total_count": self.total_count}
        said = {"entry_count": header.num_rows, "total_count": header.total_count}
        for name, number in found.items():
            if said[name] != number:
                raise LedgerFormatError(
                    f"{self._path} was truncated or edited: its header says {name}={said[name]}, "
                    f"but it holds {number}. Restore it from a copy."
                )
        if extent.num_rows != self.num_rows:
            raise LedgerFormatError(
                f"{self._path} is corrupt: it counts {extent.num_rows} entries, and "
                f"{self.num_rows} are found. Restore it from a copy."
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
