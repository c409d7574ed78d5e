"""What a stream of events comes down to, in bounded memory.

Steps that amount to the same mechanisms are of one kind, whatever their events look like. If a clip
norm adapts, for example, every step is another event, but all are of one kind. If there are too
many kinds all the same, steps are charged a little more, so that fewer kinds remain. Noise
multipliers are rounded down, and sampling probabilities up, to ever fewer decimal digits.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tfdp.accounting.mechanisms import DEARER, RemoveThenAdd, SampledGaussian
from tfdp.accounting.normal_form import NormalForm, normal_form
from tfdp.accounting.sampling_rules import sampling_of_groups, sampling_rule
from tfdp.events import (
    Event,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    Sampling,
    UnsupportedEventError,
)
from tfdp.events.protection import Protection, protection
from tfdp.ledger.entry import LedgerEntry

# Digits that are tried one after another once there are too many kinds; None is exact.
_DIGITS = (None, 6, 5, 4, 3, 2, 1)
# Events whose kind is remembered, so that a repeated one need not be taken apart again.
_REMEMBERED = 4096

# What it amounts to, what it protects, and the sampling where groups cost what follows from it.
_Kind = tuple[NormalForm, Protection, Sampling | None] | Event


def round_down(x: float, digits: int) -> float:
    """Returns the largest number of so many decimal digits that is at most the positive x."""
    exponent = math.floor(math.log10(x)) - digits + 1
    whole = math.floor(x / 10.0**exponent) + 1 if exponent > -300 else 0
    while whole > 0:
        rounded = float(f"{whole}e{exponent}")
        if rounded <= x:
            return rounded
        whole -= 1
    return x


def _round_up(probability: float, digits: int) -> float:
    exponent = math.floor(math.log10(probability)) - digits + 1
    whole = math.ceil(probability / 10.0**exponent) - 1 if exponent > -300 else 0
    while whole > 0:
        rounded = float(f"{whole}e{exponent}")
        if rounded >= probability:
            return min(rounded, 1.0)
        whole += 1
    return probability


def _rounded(mechanism: Any, digits: int) -> Any:
    """Returns a mechanism of few digits that costs at least as much; None where there is none."""
    if isinstance(mechanism, RemoveThenAdd):
        once = _rounded(mechanism.mechanism, digits)
        if once is None or once.sampling_probability < 1:
            return None if once is None else RemoveThenAdd(once)
        # Whoever is in every sample is replaced in it.
        return DEARER[RemoveThenAdd](RemoveThenAdd(once))
    if not isinstance(mechanism, SampledGaussian):
        return None
    return SampledGaussian(
        _round_up(mechanism.sampling_probability, digits),
        round_down(mechanism.noise_multiplier, digits),
    )


def _step_of(mechanism: Any, about: Protection, of_units: Sampling | None) -> Event:
    """Returns a step that amounts to the rounded mechanism."""
    if of_units is not None and about.privacy_unit is not None:
        relation, unit = about.neighboring_relation, about.privacy_unit
        step = SampledEvent(of_units, GaussianSumEvent(1.0, 1.0), relation, unit)
        (factor,) = sampling_rule(step).factors
        noise_stddev = factor * mechanism.noise_multiplier
        return dataclasses.replace(step, event=GaussianSumEvent(1.0, noise_stddev))
    if about.privacy_unit is None:
        return GaussianSumEvent(1.0, mechanism.noise_multiplier)
    once: Any = mechanism.mechanism if isinstance(mechanism, RemoveThenAdd) else mechanism
    q, z = once.sampling_probability, once.noise_multiplier
    sampling: Sampling = PoissonSampling(q)
    if about.neighboring_relation is NeighboringRelation.REPLACE_ONE and once is mechanism:
        sampling, z = FullBatchSampling(), 2 * z  # One comes and one goes.
    released = GaussianSumEvent(1.0, z)
    return SampledEvent(sampling, released, about.neighboring_relation, about.privacy_unit)


def _exact_kind(event: Event) -> _Kind:
    try:
        form = normal_form(event)
    except UnsupportedEventError:
        return event
    # Begun passes are rounded up for each of them, and steps of a run count together.
    return (form, protection(event), sampling_of_groups(event)) if form.stands_alone else event


def _kind(event: Event, digits: int | None) -> _Kind:
    """Returns what a step is counted as; its cost is at least that of the event."""
    kind = _exact_kind(event)
    if digits is None or isinstance(kind, Event):
        return kind
    fails = kind[0].failure_probability or kind[0].lost_probability
    if len(kind[0].mechanisms) != 1 or fails:
        return kind
    mechanism: Any = kind[0].mechanisms[0]
    rounded = _rounded(mechanism, digits)
    if rounded is None:
        return kind
    if kind[2] is not None:  # The sampling says what its probability is.
        rounded = dataclasses.replace(rounded, sampling_probability=mechanism.sampling_probability)
    return kind[0]._replace(mechanisms=(rounded,)), *kind[1:]


def _representative(kind: _Kind, event: Event) -> Event:
    """Returns a step of this kind; `event` is one, but for the rounding."""
    if isinstance(kind, Event) or _exact_kind(event) == kind:
        return event
    step = _step_of(kind[0].mechanisms[0], *kind[1:])
    if _exact_kind(step) != kind:
        raise ArithmeticError(f"{event!r} was to be charged as {kind[0]!r}, not as {step!r}.")
    return step


class Totals:
    """How often each kind of step happened; iteration gives an event of every kind, and its count.

    Guarantees:
        The events together cost at least as much as what was added, and exactly as much as long as
        `digits` is None. The order in which events were added does not change the result, except
        for which event of a kind stands for that kind.

    Args:
        most_kinds: How many kinds are kept. Where passes over shuffled data, or events that no
            accountant of tfdp prices, are more than that, they are kept all the same.

    Raises:
        ValueError: `most_kinds` is smaller than one.
    """

    def __init__(self, most_kinds: int = 10_000):
        if most_kinds < 1:
            raise ValueError(f"most_kinds must be at least 1. Received: {most_kinds=}.")
        self._most_kinds = most_kinds
        self._counts: dict[_Kind, LedgerEntry] = {}
        self._remembered: dict[int, tuple[Event, _Kind]] = {}
        self._level = 0

    @property
    def digits(self) -> int | None:
        """Decimal digits to which steps were rounded, towards more cost; None: they were not."""
        return _DIGITS[self._level]

    def add(self, event: Event, count: int) -> None:
        """Adds `count` such steps."""
        known = self._remembered.get(id(event))
        if known is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            # The event is kept, so that no other can have its id.
            known = self._remembered[id(event)] = event, _kind(event, self.digits)
        self._count(event, known[1], count)
        while len(self._counts) > self._most_kinds and self._level < len(_DIGITS) - 1:
            self._level += 1
            self._remembered.clear()
            entries, self._counts = list(self._counts.values()), {}
            for entry in entries:
                self._count(entry.event, _kind(entry.event, self.digits), entry.count)

    def _count(self, event: Event, kind: _Kind, count: int) -> None:
        before = self._counts.get(kind)
        if before is None:
            self._counts[kind] = LedgerEntry(_representative(kind, event), count)
        else:
            self._counts[kind] = LedgerEntry(before.event, before.count + count)

    def charged_as(self, event: Event) -> Event:
        """Returns the step that one of those which were added counts as."""
        return _representative(_kind(event, self.digits), event)

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(tuple(self._counts.values()))

    def __len__(self) -> int:
        return len(self._counts)
