"""A ledger as an SQLite file: what it must look like, how it is written, read and verified."""

from tfdp.ledger.storage.read import open_book, open_entries
from tfdp.ledger.storage.verify import Verified, verify
from tfdp.ledger.storage.write import create, exchanging, write, write_text

__all__ = [
    "Verified",
    "create",
    "exchanging",
    "open_book",
    "open_entries",
    "verify",
    "write",
    "write_text",
]
