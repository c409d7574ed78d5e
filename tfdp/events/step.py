"""One step: a sample, and all that was released about it."""

import dataclasses
from typing import ClassVar

from tfdp.events.arguments import check_type, set_field
from tfdp.events.base import Event, NeighboringRelation, Sampling
from tfdp.events.registry import register


@register
@dataclasses.dataclass(frozen=True)
class ComposedEvent(Event):
    """Several releases about the same sample, all of which an observer sees."""

    words: ClassVar[str] = "several releases about one sample"

    events: tuple[Event, ...]

    def __post_init__(self):
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

    def repeated(self, count: int) -> Event:
        return ComposedEvent(tuple(event.repeated(count) for event in self.events))


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

    def __post_init__(self):
        check_type("sampling", self.sampling, Sampling)
        check_type("event", self.event, Event)
        check_type("neighboring_relation", self.neighboring_relation, NeighboringRelation)
        if isinstance(self.event, SampledEvent):
            raise TypeError(
                f"A sample of a sample is not supported. Received: event={self.event!r}."
            )
        if self.privacy_unit not in ("example", "microbatch", "user"):
            raise ValueError(
                "privacy_unit must be 'example', 'microbatch' or 'user'. "
                f"Received: privacy_unit={self.privacy_unit!r}."
            )


def scale_sensitivity(event: Event, factor: float) -> Event:
    """Returns `event` with every norm bound multiplied by `factor`; the noise stays.

    Raises:
        UnsupportedEventError: a sub-event's sensitivity cannot be scaled.
    """
    return event.scaled(factor)


def releases(event: Event) -> list[Event]:
    """Returns the releases about one sample, in order, without the events that only group them."""
    found, pending = [], [event]
    while pending:
        part = pending.pop()
        if isinstance(part, SampledEvent):
            pending.append(part.event)
        elif isinstance(part, ComposedEvent):
            pending.extend(reversed(part.events))
        else:
            found.append(part)
    return found
