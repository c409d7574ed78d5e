"""The ledger: where events are kept, in memory and on the disk. Imports no TensorFlow."""

from tfdp.ledger.durable import DurableLedger
from tfdp.ledger.entry import LedgerEntry
from tfdp.ledger.errors import LedgerFormatError, LedgerWriteError
from tfdp.ledger.ledger import PrivacyLedger

__all__ = [
    "DurableLedger",
    "LedgerEntry",
    "LedgerFormatError",
    "LedgerWriteError",
    "PrivacyLedger",
]
