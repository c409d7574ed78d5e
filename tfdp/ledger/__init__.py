"""The ledger: where events are kept, in memory and on the disk. Imports no TensorFlow."""

from tfdp.ledger.durable import DurableLedger as DurableLedger
from tfdp.ledger.entry import LedgerEntry as LedgerEntry
from tfdp.ledger.errors import LedgerFormatError as LedgerFormatError
from tfdp.ledger.errors import LedgerWriteError as LedgerWriteError
from tfdp.ledger.ledger import PrivacyLedger as PrivacyLedger

__all__ = [
    "DurableLedger",
    "LedgerEntry",
    "LedgerFormatError",
    "LedgerWriteError",
    "PrivacyLedger",
]
