"""What the epsilon of an event is about: a neighbouring relation and a privacy unit."""

from collections.abc import Iterable
from typing import NamedTuple

from tfdp.events.base import Event, NeighboringRelation, UnsupportedEventError
from tfdp.events.step import SampledEvent


class Protection(NamedTuple):
    """What an event's epsilon is about."""

    neighboring_relation: NeighboringRelation
    privacy_unit: str | None


def protection(event: Event) -> Protection:
    """Returns what the event's epsilon is about; a bare event: any unit, added or removed."""
    if isinstance(event, SampledEvent):
        return Protection(event.neighboring_relation, event.privacy_unit)
    return Protection(NeighboringRelation.ADD_OR_REMOVE_ONE, None)


def common_protection(protections: Iterable[Protection]) -> Protection | None:
    """Returns the one protection that all have, or None where there are none.

    Raises:
        UnsupportedEventError: they differ, so that no epsilon is about all of them.
    """
    relation = unit = None
    for p in protections:
        if relation not in (None, p.neighboring_relation):
            raise UnsupportedEventError(
                f"Events under {relation.name} and under {p.neighboring_relation.name} have no "
                "common epsilon. Keep a ledger for each."
            )
        if None not in (unit, p.privacy_unit) and unit != p.privacy_unit:
            raise UnsupportedEventError(
                f"Events that protect a unit {unit!r} and a unit {p.privacy_unit!r} have no "
                "common epsilon. Keep a ledger for each."
            )
        relation, unit = p.neighboring_relation, unit or p.privacy_unit
    return None if relation is None else Protection(relation, unit)
