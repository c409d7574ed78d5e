"""Statistics of private data, one question after another, on the ledger and budget of the data."""

from tfdp.accounting import Budget, PrivacyBudgetExceededError
from tfdp.statistics.column import PrivateColumn
from tfdp.statistics.private_data import GroupedData, PrivateData

__all__ = [
    "Budget",
    "GroupedData",
    "PrivacyBudgetExceededError",
    "PrivateColumn",
    "PrivateData",
]
