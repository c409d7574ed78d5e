"""What a ledger's steps released, gathered into a few rows."""

import collections
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tfdp import events
from tfdp.accounting.normal_form import effective_noise_multiplier
from tfdp.accounting.planning.target_delta import largest_population
from tfdp.accounting.prices_of_others import prices_of_others
from tfdp.events.protection import protection
from tfdp.events.runs import SelectedRun
from tfdp.events.step import releases
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.entry import pass_index

# More different steps of one structure than this are shown as one row of ranges.
MOST_ROWS = 12


class Range(NamedTuple):
    """The smallest and the largest of some values, and how many different ones there are."""

    low: float
    high: float
    distinct: int


@dataclasses.dataclass(frozen=True)
class Release:
    """One release of every step in a row: a query group, or another mechanism.

    Attributes:
        kind: Class of the event.
        seeded: Whether the noise came from a known seed.
        fields: What the event says of itself, by name: numbers as a range, others as text.
        noise_multiplier: Noise relative to the bound; None where the event has none.
    """

    kind: type[events.Event]
    seeded: bool
    fields: dict[str, Range | str | None]
    noise_multiplier: Range | None


@dataclasses.dataclass(frozen=True)
class AlikeSteps:
    """Steps that did the same, but for the numbers shown as ranges.

    Attributes:
        steps: How many there are.
        distinct: Number of different events among them, passes over shuffled data not told apart.
        sampling: Class of the sampling's description, or None where there is none.
        sampling_fields: What the sampling says of itself; None for what it leaves open.
        passes: Passes over shuffled data that were begun; None where there are no passes.
        relation: Neighbouring relation that the epsilon is about; where the ledger has none, the
            steps' own.
        unit: Privacy unit, or None where none was declared.
        releases: What every step released about its sample, in order.
        noise_multiplier: Of all Gaussian sums of a step together, with the factor of the sampling
            and the relation; None where that is not defined.
        priced_by_others: Events and samplings whose price is not tfdp's, and whose it is.
        samplings: What `samplings_of` returns of these steps.
        population: The largest that one of these samplings records; None where none does.
        unprotected: The releases that have no privacy, also those within runs, or about parts of
            the data.
    """

    steps: int
    distinct: int
    sampling: type[events.Sampling] | None
    sampling_fields: dict[str, Range | str | None]
    passes: int | None
    relation: events.NeighboringRelation
    unit: str | None
    releases: tuple[Release, ...]
    noise_multiplier: Range | None
    priced_by_others: tuple[str, ...]
    samplings: tuple[events.Sampling | None, ...]
    population: int | None
    unprotected: tuple[Any, ...]


def samplings_of(event: events.Event) -> list[events.Sampling | None]:
    """Returns how the sample of a step was drawn, of the best of several runs of every step of
    these; None of a step that does not say.
    """
    if isinstance(event, events.SampledEvent):
        return [event.sampling]
    steps = [step for part in releases(event, in_parts=True) for step in _steps_within(part)]
    found = [sampling for step in steps for sampling in samplings_of(step)]
    return list(dict.fromkeys(found)) or [None]


def _steps_within(release: events.Event) -> list[events.Event]:
    if not isinstance(release, SelectedRun):
        return []
    return [step for run in release.runs for step in run.events]


def _unprotected(event: events.Event) -> list[Any]:
    """Returns the releases without privacy, whatever they stand in."""
    found, pending = [], [event]
    while pending:
        for part in releases(pending.pop(), in_parts=True):
            steps = _steps_within(part)
            pending += steps
            reason = None if steps else part.why_not_private()
            silent = getattr(part, "noise_multiplier", None) == 0
            if reason or silent or not part.protects or getattr(part, "seeded", False):
                found.append(part)
    return list(dict.fromkeys(found))


def _without_pass(event: events.Event) -> events.Event:
    if isinstance(event, events.SampledEvent) and event.sampling.pass_number >= 0:
        return dataclasses.replace(event, sampling=event.sampling.in_pass(0))
    return event


def _structure(event: events.Event) -> tuple[Any, ...]:
    """Returns what steps have in common that differ in numbers only."""
    parts = tuple(
        tuple((type(part), getattr(part, "seeded", False)) for part in found)
        for found in (releases(event), _unprotected(event))
    )
    if not isinstance(event, events.SampledEvent):
        return None, *protection(event), parts
    sampling = event.sampling
    known = tuple(getattr(sampling, field.name) is None for field in dataclasses.fields(sampling))  # type: ignore[arg-type]
    return type(sampling), event.neighboring_relation, event.privacy_unit, parts, known


def _range(values: Iterable[float]) -> Range:
    found = set(values)
    return Range(min(found), max(found), len(found))


def _shown(values: list[Any]) -> Range | str | None:
    """Returns a field of several events: numbers as a range, of others how each is written."""
    if all(value is None for value in values):
        return None
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return _range(values)
    return ", ".join(sorted(set(map(_text, values))))


def _text(value: Any) -> str:
    if isinstance(value, tuple) and all(isinstance(part, events.Event) for part in value):
        return "; or ".join(part.line() for part in value)
    return str(value)


def _fields(instances: list[Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(instances[0]) if f.name not in leave_out]
    return {name: _shown([getattr(instance, name) for instance in instances]) for name in names}


def _release(parts: list[Any]) -> Release:
    multiplier = None
    if hasattr(parts[0], "noise_multiplier"):
        multiplier = _range(part.noise_multiplier for part in parts)
    return Release(
        kind=type(parts[0]),
        seeded=getattr(parts[0], "seeded", False),
        fields=_fields(parts, leave_out=("seeded",)),
        noise_multiplier=multiplier,
    )


def _effective(found: Iterable[events.Event]) -> Range | None:
    try:
        multipliers = _range(map(effective_noise_multiplier, found))
    except events.UnsupportedEventError:
        return None
    return multipliers if math.isfinite(multipliers.high) else None


def _row(
    found: list[events.Event],
    steps: int,
    passes: int,
    relation: events.NeighboringRelation | None,
) -> AlikeSteps:
    samplings = [e.sampling for e in found if isinstance(e, events.SampledEvent)]
    common = protection(found[0])
    return AlikeSteps(
        steps=steps,
        distinct=len(found),
        sampling=type(samplings[0]) if samplings else None,
        sampling_fields=_fields(samplings, ("pass_index",)) if samplings else {},
        passes=passes if pass_index(found[0]) >= 0 else None,
        relation=relation or common.neighboring_relation,
        unit=common.privacy_unit,
        releases=tuple(_release(list(parts)) for parts in zip(*map(releases, found), strict=True)),
        noise_multiplier=_effective(found),
        priced_by_others=tuple(sorted(set().union(*map(prices_of_others, found)))),
        samplings=tuple(dict.fromkeys(each for event in found for each in samplings_of(event))),
        population=largest_population(found),
        unprotected=tuple(dict.fromkeys(each for event in found for each in _unprotected(event))),
    )


def alike_steps(ledger: PrivacyLedger) -> tuple[AlikeSteps, ...]:
    """Returns the rows, in the order in which their first steps come in the ledger.

    Guarantees:
        The steps of the rows add up to the ledger's. Different steps share a row only where more
        than `MOST_ROWS` have one structure, and then the row has ranges that hold them all.
    """
    counts: collections.Counter[events.Event] = collections.Counter()
    passes: collections.defaultdict[events.Event, set[int]] = collections.defaultdict(set)
    for event, count in ledger:
        numberless = _without_pass(event)
        counts[numberless] += count
        passes[numberless].add(pass_index(event))
    by_structure: collections.defaultdict[Any, list[events.Event]] = collections.defaultdict(list)
    for event in counts:
        by_structure[_structure(event)].append(event)
    try:
        relation = ledger.neighboring_relation
    except events.UnsupportedEventError:
        relation = None  # No epsilon is about all steps.
    order = {event: position for position, event in enumerate(counts)}
    rows = {}
    for alike in by_structure.values():
        parts = [[event] for event in alike] if len(alike) <= MOST_ROWS else [alike]
        for part in parts:
            begun = len(set().union(*(passes[e] for e in part)))
            rows[order[part[0]]] = _row(part, sum(counts[e] for e in part), begun, relation)
    return tuple(rows[position] for position in sorted(rows))
