"""What a ledger costs several units together, such as a family or the accounts of one person."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.groups import group_epsilon
from tfdp.accounting.prv import PRVAccountant
from tfdp.accounting.rdp import RDPAccountant
from tfdp.accounting.registry import make_accountant
from tfdp.events.arguments import positive_integer
from tfdp.ledger import PrivacyLedger
from tfdp.report.costs import Costs, coarse_ledger, refusals


@dataclasses.dataclass(frozen=True)
class GroupCost:
    """What is guaranteed to data sets that differ in so many units.

    Attributes:
        size: Of the group.
        epsilon: At the target delta; infinite where no bound was found.
        method: How it was computed.
    """

    size: int
    epsilon: float
    method: str


def group_costs(
    ledger: PrivacyLedger, costs: Costs, group_sizes: Sequence[int]
) -> tuple[GroupCost, ...]:
    """Returns what the ledger costs groups, by the smallest upper bound there is.

    Args:
        ledger: What was done.
        costs: Of the same ledger, at the delta that is asked for.
        group_sizes: How many units groups have.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is below one.
    """
    sizes = sorted({positive_integer("group_size", size) for size in group_sizes})
    if not sizes:
        return ()
    coarse, _, _ = coarse_ledger(ledger)
    headline = None
    if costs.headline is not None:
        headline = make_accountant(costs.headline.name)
        (ledger if headline.takes_many_kinds else coarse or ledger).replay(headline)
    return tuple(_cost(ledger, coarse, costs, headline, size) for size in sizes)


def _cost(
    ledger: PrivacyLedger,
    coarse: PrivacyLedger | None,
    costs: Costs,
    headline: Accountant | None,
    size: int,
) -> GroupCost:
    asked = [("rdp", RDPAccountant, ledger), ("prv", PRVAccountant, coarse)]
    found = []
    for name, make, given in asked:
        if given is None:
            continue
        try:
            epsilon = given.replay(make(group_size=size)).get_epsilon(costs.target_delta)
        except refusals():
            continue
        found.append((epsilon, f"{name}, which knows groups"))
    if headline is not None and costs.headline is not None:
        # The definition of (epsilon, delta) leads from one unit to many. For samples of a fixed
        # size it can be better than what is known of groups.
        with contextlib.suppress(*refusals()):
            epsilon = group_epsilon(headline, size, costs.target_delta)
            found.append((epsilon, f"{costs.headline.name} for one unit, {size} times in a row"))
    epsilon, method = min(found, default=(math.inf, "no accountant gives a bound"))
    return GroupCost(size, float(epsilon), method)
