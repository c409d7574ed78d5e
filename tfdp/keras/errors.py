"""Errors that stop a training run before a guarantee is lost."""

from tfdp.accounting import PrivacyBudgetExceededError as PrivacyBudgetExceededError


class NotPrivateError(ValueError):
    """Something would be trained on, or released, without going through the mechanism."""


class LedgerMismatchError(ValueError):
    """The weights embody private steps that the ledger does not hold."""
