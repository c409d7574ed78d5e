"""What the events of a ledger cost. NumPy and SciPy only; every name is imported on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdp.accounting.accountant import Accountant as Accountant
    from tfdp.accounting.pld import PLDAccountant as PLDAccountant
    from tfdp.accounting.rdp import RDPAccountant as RDPAccountant
    from tfdp.accounting.registry import ACCOUNTANTS as ACCOUNTANTS
    from tfdp.accounting.registry import make_accountant as make_accountant
    from tfdp.ledger.events import NeighboringRelation as NeighboringRelation
    from tfdp.ledger.events import UnsupportedEventError as UnsupportedEventError

_NAMES = {
    "ACCOUNTANTS": "tfdp.accounting.registry",
    "Accountant": "tfdp.accounting.accountant",
    "NeighboringRelation": "tfdp.ledger.events",
    "PLDAccountant": "tfdp.accounting.pld",
    "RDPAccountant": "tfdp.accounting.rdp",
    "UnsupportedEventError": "tfdp.ledger.events",
    "make_accountant": "tfdp.accounting.registry",
}

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'tfdp.accounting' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
