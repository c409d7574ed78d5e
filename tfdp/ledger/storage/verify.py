"""Checking a ledger file against its key, or against a head that was noted earlier."""

import os
import re
from typing import NamedTuple

from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage.read import Book, open_book
from tfdp.ledger.storage.schema import Header


class Verified(NamedTuple):
    """What `verify` found.

    Attributes:
        header: Of the file, every number of which was checked, and the head unless `checked` is
            False.
        checked: Whether the digests were checked: not where they need a key and none was given.
        count_at_head: How many events the ledger held when it had the given head; None where none
            was given. More than now where leases were settled since.
    """

    header: Header
    checked: bool
    count_at_head: int | None = None


def verify(
    path: str | os.PathLike[str], key: bytes | None = None, head: str | None = None
) -> Verified:
    """Reads the whole file and checks every row.

    Args:
        path: The file.
        key: That it was written with.
        head: Of an earlier state of the ledger, which must be part of this one: 64 hexadecimal
            digits, as an earlier `tfdp verify` printed them.

    Raises:
        FileNotFoundError: there is no such file.
        LedgerFormatError: it is not a ledger, or was changed; the message names the first entry
            that is not as it was written. Or it never had that head.
        ValueError: `head` is no head, or heads cannot be compared, because the digests need a key.
    """
    if head is not None:
        head = head.strip().lower()
        if not re.fullmatch("[0-9a-f]{64}", head):
            raise ValueError(
                "A head is the 64 hexadecimal digits that an earlier `tfdp verify` printed, all of "
                f"them. Received: head={head!r:.100}."
            )
    with open_book(path, key) as book:
        for _ in book.entries():  # Also decodes every event.
            pass
        count = None if head is None else _count_at(book, head)
        return Verified(book.header, book.chain is not None, count)


def _count_at(book: Book, head: str) -> int:
    """Returns how many events the ledger held when its head was `head`.

    Raises:
        LedgerFormatError: it never was.
        ValueError: there is no key to compute heads with.
    """
    chain, reader = book.chain, book.reader()
    if chain is None:
        raise ValueError(f"{book.path} was written with a key: an earlier head is checked with it.")
    count = 0 if head == chain.head(reader.digest, 0, 0) else None
    for _ in book.rows(reader):
        if head == chain.head(reader.digest, reader.num_rows, reader.total_count):
            count = reader.total_count
    if count is None:
        raise LedgerFormatError(
            f"{book.path} never had the head {head}: it was rolled back, or rewritten. "
            "PrivacyLedger.save rewrites a file, too, where more of its last event came; a ledger "
            "of PrivacyLedger.open keeps all of its heads."
        )
    return count
