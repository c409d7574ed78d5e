"""Accountants by name, class or instance: one way to choose one, and one that is the default."""

import copy
import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tfdp.events import NeighboringRelation
from tfdp.events.protection import common_protection, protection
from tfdp.events.registry import is_defined_anew

if TYPE_CHECKING:
    from tfdp.events import Event

# Everything that takes an accountant takes a name in `ACCOUNTANTS`, a class (or a function that
# makes a new accountant), or an accountant into which nothing was composed, which is copied.
AccountantChoice = str | Callable[[], Any] | Any
# It prices every event there is, its bounds are proven and never above those of Renyi divergences,
# and it is quick: what calibration plans is what callbacks and replays then say.
DEFAULT_ACCOUNTANT = "prv"


# name -> module and class of an accountant of ours.
_OURS = {
    "rdp": ("tfdp.accounting.rdp", "RDPAccountant"),
    "pld": ("tfdp.accounting.pld", "PLDAccountant"),
    "prv": ("tfdp.accounting.prv", "PRVAccountant"),
    "moments": ("tfdp.accounting.moments", "MomentsAccountant"),
    "zcdp": ("tfdp.accounting.zcdp", "ZCDPAccountant"),
    "gdp": ("tfdp.accounting.gdp", "GDPAccountant"),
    "strong": ("tfdp.accounting.composition", "StrongComposition"),
    "basic": ("tfdp.accounting.composition", "BasicComposition"),
    "monte_carlo": ("tfdp.accounting.monte_carlo", "MonteCarloAccountant"),
}


def _ours(module: str, name: str) -> Callable[[NeighboringRelation], Any]:
    # tfdp's accountants read the relation from the events.
    return lambda relation: getattr(importlib.import_module(module), name)()


def _dp_accounting_rdp(relation: NeighboringRelation) -> Any:
    import dp_accounting

    from tfdp.accounting.dp_events import dp_accounting_relation

    return dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting_relation(relation))


ACCOUNTANTS: dict[str, Callable[[NeighboringRelation], Any]] = {
    **{name: _ours(*place) for name, place in _OURS.items()},
    "dp_accounting.rdp": _dp_accounting_rdp,
}
"""Name -> a function from the neighbouring relation of a ledger to a new accountant."""


def register_accountant(name: str, make: Callable[[NeighboringRelation], Any]) -> None:
    """Gives an accountant a name, by which everything that takes an accountant knows it.

    Reports show what it says for comparison: what they state rests on tfdp's own accountants.

    Args:
        name: Such as "fourier".
        make: A function of the neighbouring relation of the ledger that returns a new accountant:
            an object with `compose(event, count)` and `get_epsilon(target_delta)`.

    Raises:
        ValueError: there is an accountant of this name from elsewhere.
        TypeError: `name` is not a string, or `make` cannot be called.
    """
    if not isinstance(name, str) or not callable(make):
        raise TypeError(
            "An accountant is registered by a name and a function that makes one. "
            f"Received: name={name!r}, make={make!r}."
        )
    before = ACCOUNTANTS.get(name)
    if before is not None and not is_defined_anew(before, make):
        raise ValueError(f"There is an accountant {name!r} already. Choose another name.")
    ACCOUNTANTS[name] = make


def make_accountant(
    name: str, neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
) -> Any:
    """Returns a new accountant to replay a ledger into.

    All give upper bounds: "gdp" refuses what it could only approximate, and "monte_carlo" says
    with which probability they are that.

    Args:
        name: A key of `ACCOUNTANTS`: "rdp", "pld", "prv", "moments", "zcdp", "gdp", "strong",
            "basic", "monte_carlo" or "dp_accounting.rdp".
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


def accountant_maker(
    accountant: AccountantChoice = None,
) -> Callable[[NeighboringRelation], Any]:
    """Returns a function from the relation of a ledger to a new accountant.

    Args:
        accountant: A key of `ACCOUNTANTS`; a class, or another function without arguments, that
            makes one; or one into which nothing was composed, which is copied. None is the default.

    Raises:
        ValueError: there is no accountant of this name, or something was composed into it.
        TypeError: it is none of these.

    Example:
        >>> from tfdp.accounting import RDPAccountant
        >>> make = accountant_maker(RDPAccountant(orders=[2, 4, 8]))
        >>> make(NeighboringRelation.ZERO_OUT).orders.tolist()
        [2.0, 4.0, 8.0]
    """
    accountant = DEFAULT_ACCOUNTANT if accountant is None else accountant
    if isinstance(accountant, str):
        if accountant not in ACCOUNTANTS:
            make_accountant(accountant)  # Says which there are.
        return ACCOUNTANTS[accountant]
    if callable(accountant):
        return lambda relation: accountant()
    if not callable(getattr(accountant, "compose", None)):
        raise TypeError(
            "accountant must be a name such as 'prv', a class such as "
            f"tfdp.accounting.PRVAccountant, or an accountant. Received: accountant={accountant!r}."
        )
    if getattr(accountant, "neighboring_relation", None) is not None and hasattr(
        accountant, "compose_entries"
    ):
        raise ValueError(
            "An accountant that others are copied from must be empty: what was composed into it "
            f"would be charged again. Received: accountant={accountant!r}."
        )
    return lambda relation: copy.deepcopy(accountant)


def confidence_of(made: Any) -> float | None:
    """Returns the probability with which what an accountant says holds; None where it is proven."""
    return getattr(made, "confidence", None)


def check_proven(accountant: AccountantChoice) -> None:
    """Refuses an accountant whose bounds hold with a probability only.

    Who asks it again and again, with a little more noise or a step less, until it says yes, is told
    yes by a draw that was lucky.

    Raises:
        ValueError: it is one of these.
    """
    made = accountant_maker(accountant)(NeighboringRelation.ADD_OR_REMOVE_ONE)
    confidence = confidence_of(made)
    if confidence is not None:
        raise ValueError(
            f"{made!r} gives bounds that hold with probability {confidence!r} each. Budgets and "
            "searches ask again and again, and need proven bounds: take another accountant, such "
            f"as {DEFAULT_ACCOUNTANT!r}, and ask this one what the whole cost is."
        )


def accountant_name(accountant: AccountantChoice) -> str:
    """Returns what a message or a table calls the accountant: its name in `ACCOUNTANTS`, or that of
    its class.
    """
    if isinstance(accountant, str):
        return accountant
    if not callable(accountant):
        return repr(accountant)
    named = getattr(accountant, "__name__", type(accountant).__name__)
    names = {place: name for name, place in _OURS.items()}
    return names.get((getattr(accountant, "__module__", ""), named), named)


def keeps_passes(accountant: Any) -> bool:
    """Whether events may come one by one: it knows which of them are of one pass or of one run."""
    return callable(getattr(accountant, "compose_entries", None))


def replayed(entries: Iterable[tuple["Event", int]], accountant: AccountantChoice = None) -> Any:
    """Returns a new accountant of all that one ledger would hold, under the relation of all.

    What a ledger would cost with a step more is asked like this: the step may be of a pass, or of a
    run, that the ledger has begun.

    Raises:
        UnsupportedEventError: the accountant refuses an event, or units differ.
    """
    entries = list(entries)
    common = common_protection(protection(event) for event, _ in entries)
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    made = accountant_maker(accountant)(common.neighboring_relation if common else relation)
    if keeps_passes(made):
        return made.compose_entries(entries)
    return _ledger_of(entries).replay(made)


def _ledger_of(entries: Iterable[tuple["Event", int]]) -> Any:
    from tfdp.ledger import PrivacyLedger

    ledger = PrivacyLedger()
    for event, count in entries:
        ledger.append(event, count)
    return ledger
