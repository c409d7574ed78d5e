"""Whether a delta is small enough to mean something."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from tfdp.events import Event, Sampling


def delta_warning(target_delta: float, population_size: int | None) -> str | None:
    """Returns what to say of a delta that is not below one divided by the population.

    At such a delta a release that publishes the whole record of a unit, chosen at random, is
    private by definition, whatever epsilon is. It should be well below.

    Args:
        target_delta: Between 0 and 1.
        population_size: Units in the data set; None where it is not known, and nothing is said.

    Returns:
        A sentence without a full stop, or None where there is nothing to say.

    Example:
        >>> delta_warning(1e-5, 60_000)
        >>> print(delta_warning(1e-2, 60_000))
        delta = 0.01 is not below 1 / population (60000), so it would allow to publish a unit as is
    """
    if population_size is None or target_delta < 1 / population_size:
        return None
    return (
        f"delta = {float(target_delta)!r} is not below 1 / population ({population_size}), so it "
        "would allow to publish a unit as is"
    )


def careful_lines(target_delta: float, population_size: int | None) -> list[str]:
    """Returns the line that commands print where `delta_warning` has something to say, or none."""
    said = delta_warning(target_delta, population_size)
    return [] if said is None else [f"careful: {said}"]


def largest_population(events: Iterable[Event]) -> int | None:
    """Returns the largest population that samplings of these events record, None without any."""
    return max((size for event in events for size in _populations(event)), default=None)


def _populations(part: Any) -> Iterator[int]:
    if isinstance(part, tuple):
        for each in part:
            yield from _populations(each)
    elif isinstance(part, (Event, Sampling)) and dataclasses.is_dataclass(part):
        size = getattr(part, "population_size", None)
        if isinstance(part, Sampling) and size is not None:
            yield size
        for field in dataclasses.fields(part):
            yield from _populations(getattr(part, field.name))
