"""What can be wrong with a stored ledger."""


class LedgerFormatError(ValueError):
    """A stored ledger, or an event in it, cannot be read; the message says where and what to do."""
