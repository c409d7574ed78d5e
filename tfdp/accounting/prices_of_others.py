"""Prices of events that other packages bring."""

import math
from collections.abc import Callable
from typing import Any

from tfdp import events
from tfdp.accounting.mechanisms import (
    BoundedRange,
    Concentrated,
    Mechanism,
    NoPrivacy,
    PureEpsilon,
    SampledGaussian,
    SampledLaplace,
)
from tfdp.accounting.normal_form import RELEASES
from tfdp.accounting.ranges import within_range
from tfdp.accounting.sampling_rules import sampling_rules_of_others
from tfdp.events import NeighboringRelation, UnsupportedEventError
from tfdp.events.registry import is_ours, registered
from tfdp.events.runs import SelectedRun
from tfdp.events.step import releases

# What a function of another package may say that a release costs: it is no sample yet. Randomized
# response is left out: what samples of it cost where a unit is replaced holds for reports about one
# unit each, and nobody knows whether the release is such.
_SAYABLE = (BoundedRange, Concentrated, NoPrivacy, PureEpsilon, SampledGaussian, SampledLaplace)


def register_price(
    event_class: type[events.Event],
    price: Callable[[Any, float, NeighboringRelation], Mechanism],
) -> None:
    """Gives the events of a class that is not tfdp's a price, by every accountant.

    tfdp cannot check the price. Reports and `tfdp replay` name the package that it is from.

    Args:
        event_class: A registered class of events (`tfdp.events.register`).
        price: A function of an event, of a factor f and of the neighbouring relation. It returns
            what one such release is, about a sample that neighbours change by f units. That is a
            `BoundedRange`, `Concentrated`, `NoPrivacy`, `PureEpsilon`, `SampledGaussian` or
            `SampledLaplace` of `tfdp.accounting.mechanisms` whose sampling probability, if it has
            one, is 1; `PureEpsilon(0.0)` where the release says nothing about the sample. Sampling
            is taken care of elsewhere.

    Raises:
        TypeError: the class is not registered, or the price cannot be called.
        ValueError: the class is tfdp's, or has a price from another module.
    """
    name = getattr(event_class, "__name__", repr(event_class))
    if registered(name) is not event_class or not issubclass(event_class, events.Event):
        raise TypeError(
            "Register the class of events first, by tfdp.events.register. "
            f"Received: {event_class!r}."
        )
    if not callable(price):
        raise TypeError(f"A price must be a function. Received: {price!r}.")
    owner = _PRICED_BY.get(event_class)
    if is_ours(event_class) or owner not in (None, str(price.__module__)):
        raise ValueError(f"{name} has a price already, by {owner or 'tfdp'}.")

    def checked(event: Any, factor: float, relation: NeighboringRelation) -> Mechanism:
        return _checked(price(event, factor, relation), event)

    RELEASES[event_class] = checked
    _PRICED_BY[event_class] = str(price.__module__)


# Class of events -> the module that its price is from, where that is not tfdp's.
_PRICED_BY: dict[type, str] = {}


def _checked(found: Any, event: events.Event) -> Mechanism:
    """Returns what a function of another package says, if it is a mechanism that makes sense.

    None makes none: a function that has no answer for a case, or forgets `return`, returns it.
    """
    values = vars(found) if type(found) in _SAYABLE else {"price": math.nan}
    numbers = all(isinstance(value, (int, float)) and value >= 0 for value in values.values())
    if not numbers or values.get("sampling_probability", 1) != 1:
        raise UnsupportedEventError(
            f"The price of a {type(event).__name__} must be one of "
            f"{', '.join(kind.__name__ for kind in _SAYABLE)}, with positive numbers and without "
            f"sampling. Received: {found!r}, for {event!r}."
        )
    return within_range(found)


def prices_of_others(event: events.Event) -> set[str]:
    """Returns which prices of an event are not tfdp's: the classes and the modules they are from.

    Example:
        >>> prices_of_others(events.GaussianSumEvent(1.0, 2.0))
        set()
    """
    if isinstance(event, SelectedRun):
        steps = [step for run in event.runs for step in run.events]
        return set().union(*map(prices_of_others, steps))
    found = {
        f"{kind.__name__} (by {_PRICED_BY[kind]})"
        for kind in map(type, releases(event, in_parts=True))
        if kind in _PRICED_BY
    }
    return found | sampling_rules_of_others(event)
