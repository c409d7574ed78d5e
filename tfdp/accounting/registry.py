"""Accountants by name, for the command line and for configuration files."""

import importlib
from collections.abc import Callable
from typing import Any

from tfdp.events import NeighboringRelation


def _ours(module: str, name: str) -> Callable[[NeighboringRelation], Any]:
    # tfdp's accountants read the relation from the events.
    return lambda relation: getattr(importlib.import_module(module), name)()


def _dp_accounting_rdp(relation: NeighboringRelation) -> Any:
    import dp_accounting

    from tfdp.accounting.dp_events import dp_accounting_relation

    return dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting_relation(relation))


# name -> a function from the neighbouring relation of the ledger to a new accountant.
ACCOUNTANTS: dict[str, Callable[[NeighboringRelation], Any]] = {
    "rdp": _ours("tfdp.accounting.rdp", "RDPAccountant"),
    "pld": _ours("tfdp.accounting.pld", "PLDAccountant"),
    "prv": _ours("tfdp.accounting.prv", "PRVAccountant"),
    "moments": _ours("tfdp.accounting.moments", "MomentsAccountant"),
    "zcdp": _ours("tfdp.accounting.zcdp", "ZCDPAccountant"),
    "gdp": _ours("tfdp.accounting.gdp", "GDPAccountant"),
    "strong": _ours("tfdp.accounting.composition", "StrongComposition"),
    "basic": _ours("tfdp.accounting.composition", "BasicComposition"),
    "dp_accounting.rdp": _dp_accounting_rdp,
}


def make_accountant(
    name: str, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
) -> Any:
    """Returns a new accountant to replay a ledger into.

    All give upper bounds: "gdp" refuses what it could only approximate.

    Args:
        name: A key of `ACCOUNTANTS`: "rdp", "pld", "prv", "moments", "zcdp", "gdp", "strong",
            "basic" or "dp_accounting.rdp".
        neighboring_relation: The relation of the ledger. tfdp's accountants read it from the
            events.

    Raises:
        ValueError: there is no accountant of this name.

    Example:
        >>> make_accountant("prv").get_epsilon(1e-5)
        0.0
    """
    if name not in ACCOUNTANTS:
        raise ValueError(f"The accountant must be one of {list(ACCOUNTANTS)}. Received: {name!r}.")
    return ACCOUNTANTS[name](neighboring_relation)
