"""Errors that stop a training run before a guarantee is lost."""


class NotPrivateError(ValueError):
    """Something would be trained on, or released, without going through the mechanism."""


class LedgerMismatchError(ValueError):
    """The weights embody private steps that the ledger does not hold."""


class PrivacyBudgetExceededError(RuntimeError):
    """The next step would spend more than the budget."""
