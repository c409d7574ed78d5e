"""One step: a sample, and all that was released about it."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import ClassVar

from tfdp.events.arguments import check_type, set_field
from tfdp.events.base import Event, NeighboringRelation, Sampling
from tfdp.events.registry import register


def first_reason(events: Iterable[Event]) -> str | None:
    """Returns why the epsilon of one of the events is infinite, or None where none need be."""
    reasons = (event.why_not_private() for event in events)
    return next((reason for reason in reasons if reason is not None), None)


@register
@dataclasses.dataclass(frozen=True)
class ComposedEvent(Event):
    """Several releases about the same sample, all of which an observer sees."""

    words: ClassVar[str] = "several releases about one sample"

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        set_field(self, "events", tuple(self.events))
        for event in self.events:
            check_type("events", event, Event)
            if isinstance(event, SampledEvent):
                raise TypeError(
                    "A ComposedEvent describes one sample; it cannot hold a SampledEvent: "
                    f"{event!r}."
                )

    def scaled(self, factor: float) -> Event:
        return ComposedEvent(tuple(event.scaled(factor) for event in self.events))

    def of_group(self, size: int) -> Event:
        return ComposedEvent(tuple(event.of_group(size) for event in self.events))

    def why_not_private(self) -> str | None:
        return first_reason(self.events)

    def why_not_on(self, sampling: Sampling) -> str | None:
        reasons = (event.why_not_on(sampling) for event in self.events)
        return next((reason for reason in reasons if reason is not None), None)

    def run_start(self) -> Event | None:
        starts = [event.run_start() for event in self.events]
        if not any(starts):
            return None
        return ComposedEvent(
            tuple(start or event for start, event in zip(starts, self.events, strict=True))
        )

    def step_of_run(self) -> int | None:
        steps = (event.step_of_run() for event in self.events)
        return next((step for step in steps if step is not None), None)

    def run_ids(self) -> tuple[int, ...]:
        return tuple(number for event in self.events for number in event.run_ids())

    def repeated(self, count: int) -> Event:
        return ComposedEvent(tuple(event.repeated(count) for event in self.events))


@register
@dataclasses.dataclass(frozen=True)
class ParallelComposition(Event):
    """Releases about disjoint parts of the data, all of which an observer sees.

    Which part a unit is in depends on the unit alone, and each release on the units in its part
    alone. Let D and D' differ by a unit that is in D only. It is in one part, i. Every other part
    is the same in both, and so is the distribution of its release, whatever the other releases
    were. So what tells D from D' is the release about part i, and the whole costs what the dearest
    part costs, at every epsilon. A unit that is zeroed out is likewise in one part, in which it
    contributes zero. A unit that is replaced may leave one part and come to another; accountants
    refuse that relation, and samples whose neighbours differ by more than one unit.

    Attributes:
        events: What was released about each part, of which equal ones stand here once: how many
            there are costs nothing.
    """

    words: ClassVar[str] = "releases about disjoint parts of the data"
    field_words: ClassVar[Mapping[str, str]] = {"events": "released about each part, one of"}

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        for event in self.events:
            check_type("events", event, Event)
            if isinstance(event, SampledEvent):
                raise TypeError(
                    "The parts of a ParallelComposition are parts of one sample; none can be a "
                    f"SampledEvent: {event!r}."
                )
        if not self.events:
            raise ValueError("events must hold at least one event. Received: events=().")
        set_field(self, "events", tuple(dict.fromkeys(self.events)))

    def why_not_private(self) -> str | None:
        return first_reason(self.events)

    def line(self) -> str:
        parts = "; ".join(dict.fromkeys(event.line() for event in self.events))
        return f"about each of disjoint parts of the data, one of: {parts}"


@register
@dataclasses.dataclass(frozen=True)
class SampledEvent(Event):
    """One step: a sample was drawn, and `event` was released about it.

    Attributes:
        sampling: How the sample was drawn.
        event: What was released about the sample: a sum query, or several composed.
        neighboring_relation: The relation under which the sampling and the bounds are to be read.
        privacy_unit: What a unit is: "example", "microbatch" or "user".
    """

    words: ClassVar[str] = "step on a sample"

    sampling: Sampling
    event: Event
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE
    privacy_unit: str = "example"

    def __post_init__(self) -> None:
        check_type("sampling", self.sampling, Sampling)
        check_type("event", self.event, Event)
        check_type("neighboring_relation", self.neighboring_relation, NeighboringRelation)
        if isinstance(self.event, SampledEvent):
            raise TypeError(
                f"A sample of a sample is not supported. Received: event={self.event!r}."
            )
        reason = self.event.why_not_on(self.sampling)
        if reason is not None:
            raise ValueError(
                f"The release cannot be about such a sample: it {reason}. "
                f"Received: sampling={self.sampling!r}, event={self.event!r:.500}."
            )
        if self.privacy_unit not in ("example", "microbatch", "user"):
            raise ValueError(
                "privacy_unit must be 'example', 'microbatch' or 'user'. "
                f"Received: privacy_unit={self.privacy_unit!r}."
            )

    def why_not_private(self) -> str | None:
        return self.event.why_not_private()

    def run_start(self) -> Event | None:
        start = self.event.run_start()
        if start is None:
            return None
        return dataclasses.replace(self, sampling=self.sampling.at_first_place(), event=start)

    def step_of_run(self) -> int | None:
        return self.event.step_of_run()

    def run_ids(self) -> tuple[int, ...]:
        return self.event.run_ids()

    def line(self) -> str:
        return f"{self.event.line()}, on {self.sampling!r}"


def scale_sensitivity(event: Event, factor: float) -> Event:
    """Returns `event` with every norm bound multiplied by `factor`; the noise stays.

    Raises:
        UnsupportedEventError: a sub-event's sensitivity cannot be scaled.
    """
    return event.scaled(factor)


def releases(event: Event, *, in_parts: bool = False) -> list[Event]:
    """Returns the releases about one sample, in order, without the events that only group them.

    Args:
        event: Any event.
        in_parts: Whether releases about disjoint parts are wanted instead of the event that holds
            them.
    """
    found, pending = [], [event]
    while pending:
        part = pending.pop()
        if isinstance(part, SampledEvent):
            pending.append(part.event)
        elif isinstance(part, ComposedEvent) or (
            in_parts and isinstance(part, ParallelComposition)
        ):
            pending.extend(reversed(part.events))
        else:
            found.append(part)
    return found
