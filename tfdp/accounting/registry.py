"""Accountants by name, for the command line and for configuration files."""

from collections.abc import Callable
from typing import Any

from tfdp.ledger.events import NeighboringRelation


def _rdp(relation: NeighboringRelation) -> Any:
    from tfdp.accounting.rdp import RDPAccountant

    return RDPAccountant()


def _pld(relation: NeighboringRelation) -> Any:
    from tfdp.accounting.pld import PLDAccountant

    return PLDAccountant()


def _dp_accounting_rdp(relation: NeighboringRelation) -> Any:
    import dp_accounting

    from tfdp.ledger.dp_event import dp_accounting_relation

    return dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting_relation(relation))


# name -> a function from the neighbouring relation of the ledger to a new accountant.
ACCOUNTANTS: dict[str, Callable[[NeighboringRelation], Any]] = {
    "rdp": _rdp,
    "pld": _pld,
    "dp_accounting.rdp": _dp_accounting_rdp,
}


def make_accountant(
    name: str, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
) -> Any:
    """Returns a new accountant to replay a ledger into.

    Args:
        name: A key of `ACCOUNTANTS`: "rdp", "pld" or "dp_accounting.rdp".
        neighboring_relation: The relation of the ledger. tfdp's accountants read it from the
            events.

    Raises:
        ValueError: there is no accountant of this name.
    """
    if name not in ACCOUNTANTS:
        raise ValueError(f"The accountant must be one of {list(ACCOUNTANTS)}. Received: {name!r}.")
    return ACCOUNTANTS[name](neighboring_relation)
