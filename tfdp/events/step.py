"""One step: a sample, and all that was released about it."""

import dataclasses

from tfdp.events.arguments import check_type, set_field
from tfdp.events.base import Event, NeighboringRelation, Sampling, UnsupportedEventError
from tfdp.events.releases import (
    DiscreteGaussianSumEvent,
    GaussianSumEvent,
    LaplaceSumEvent,
    NonPrivateEvent,
)


@dataclasses.dataclass(frozen=True)
class ComposedEvent(Event):
    """Several releases about the same sample, all of which an observer sees."""

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


@dataclasses.dataclass(frozen=True)
class SampledEvent(Event):
    """One step: a sample was drawn, and `event` was released about it.

    Attributes:
        sampling: How the sample was drawn.
        event: What was released about the sample: a sum query, or several composed.
        neighboring_relation: The relation under which the sampling and the bounds are to be read.
        privacy_unit: What a unit is: "example", "microbatch" or "user".
    """

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
    if isinstance(event, (GaussianSumEvent, DiscreteGaussianSumEvent)):
        return dataclasses.replace(event, l2_norm_bound=event.l2_norm_bound * factor)
    if isinstance(event, LaplaceSumEvent):
        return dataclasses.replace(event, l1_norm_bound=event.l1_norm_bound * factor)
    if isinstance(event, ComposedEvent):
        return ComposedEvent(tuple(scale_sensitivity(e, factor) for e in event.events))
    if isinstance(event, NonPrivateEvent):
        return event
    raise UnsupportedEventError(
        f"The sensitivity of a {type(event).__name__} cannot be scaled: {event!r}."
    )
