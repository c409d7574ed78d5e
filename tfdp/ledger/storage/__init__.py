"""A ledger as an SQLite file: what it must look like, how it is written, read and verified."""

from tfdp.ledger.storage.open_file import nobody_writes
from tfdp.ledger.storage.read import Book, open_book, open_entries
from tfdp.ledger.storage.verify import Verified, verify
from tfdp.ledger.storage.write import create, exchanging, write, write_text

__all__ = [
    "Book",
    "Verified",
    "create",
    "exchanging",
    "nobody_writes",
    "open_book",
    "open_entries",
    "verify",
    "write",
    "write_text",
]
