"""What the epsilon of an event is about: a neighbouring relation and a privacy unit."""

from collections.abc import Iterable
from typing import NamedTuple

from tfdp.events.base import Event, NeighboringRelation, UnsupportedEventError
from tfdp.events.runs import SelectedRun
from tfdp.events.step import SampledEvent


class Protection(NamedTuple):
    """What an event's epsilon is about."""

    neighboring_relation: NeighboringRelation
    privacy_unit: str | None


def protection(event: Event) -> Protection:
    """Returns what the event's epsilon is about; a bare event: any unit, added or removed.

    Raises:
        UnsupportedEventError: it is the best of runs that protect different units.
    """
    if isinstance(event, SampledEvent):
        return Protection(event.neighboring_relation, event.privacy_unit)
    if isinstance(event, SelectedRun):
        steps = [step for run in event.runs for step in run.events]
        return common_protection(map(protection, steps)) or _BARE
    return _BARE


_BARE = Protection(NeighboringRelation.ADD_OR_REMOVE_ONE, None)


def common_protection(protections: Iterable[Protection]) -> Protection | None:
    """Returns the protection that all have, or None where there are none.

    Where relations differ it is about ZERO_OUT, which every price covers. A null unit contributes
    zero, which is one of the contributions within the bound, so REPLACE_ONE covers it. Under
    ADD_OR_REMOVE_ONE the unit's contribution is taken from the same samples. For samples of fixed
    size it is instead in the sample with probability n / N, in place of something within 2 S. By
    advanced joint convexity (Balle et al. 2018, arXiv:1807.01647, theorem 2) the zeroed one costs
    no more than that.

    Raises:
        UnsupportedEventError: units differ, so that no epsilon is about all of them.
    """
    relation = unit = None
    for p in protections:
        if None not in (unit, p.privacy_unit) and unit != p.privacy_unit:
            raise UnsupportedEventError(
                f"Events that protect a unit {unit!r} and a unit {p.privacy_unit!r} have no "
                "common epsilon. Keep a ledger for each."
            )
        differ = relation not in (None, p.neighboring_relation)
        relation = NeighboringRelation.ZERO_OUT if differ else p.neighboring_relation
        unit = unit or p.privacy_unit
    return None if relation is None else Protection(relation, unit)
