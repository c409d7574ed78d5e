"""Every event as Poisson-sampled Gaussians: the one form that all accountants price.

All Gaussian sums released about one sample are together one Gaussian (McMahan et al. 2018,
arXiv:1812.06210, section 3). With l2 bounds S_g, noise sigma_g and a factor f by which a step's
neighbouring samples may differ,

    1 / z^2 = sum_g (f * S_g / sigma_g)^2.

The sampling policy and the neighbouring relation give f and the sampling probability q:

| sampling | q | f: add or remove one | f: replace one | f: zero out |
|---|---|---|---|---|
| none (a bare event) | 1 | 1 | | |
| Poisson | sampling_probability | 1 | 2, and only where q = 1 | 1 |
| full batch | 1 | 1 | 2 | 1 |
| fixed size | 1 | 2: one comes in, another goes out | 2 | 1 |
| shuffled, once a pass | 1 | sqrt(5) | 2 | 1 |
| unknown | 1 | 2 | 2 | 1 |

A record added to a shuffled data set takes the place of one that moves to the last batch: one batch
moves by 2 S and the last by S, together sqrt(5) S. Within a pass the other batches do not differ,
so a pass costs one Gaussian, a begun pass as much as a whole one. Fixed-size sampling is not given
the amplification that it has.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tfdp.ledger import events
from tfdp.ledger.events import NeighboringRelation, UnsupportedEventError

_ADD, _REPLACE, _ZERO = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.ZERO_OUT,
)

# Noise multipliers beyond these are priced as no noise and as this much noise, so that squares stay
# finite.
_SMALLEST_MULTIPLIER = 1e-150
_LARGEST_MULTIPLIER = 1e150


class SampledGaussian(NamedTuple):
    """The Gaussian mechanism of sensitivity one on a Poisson sample, add-or-remove-one.

    Attributes:
        sampling_probability: q, in (0, 1].
        noise_multiplier: z; zero is no privacy.
    """

    sampling_probability: float
    noise_multiplier: float


class _Rule(NamedTuple):
    """How a sampling policy is priced: q, f, and the number of events that cost one Gaussian."""

    sampling_probability: float
    factor: float
    events_per_gaussian: int = 1


def _poisson(sampling: events.PoissonSampling, relation: NeighboringRelation) -> _Rule:
    q = sampling.sampling_probability
    if relation is not _REPLACE:
        return _Rule(q, 1.0)
    if q == 1:
        return _Rule(q, 2.0)
    raise UnsupportedEventError(
        f"Poisson sampling with sampling_probability={q} is not supported under {relation.name}: "
        f"{sampling!r}. "
        f"Declare {_ADD.name} or {_ZERO.name}."
    )


def _full_batch(sampling: events.FullBatchSampling, relation: NeighboringRelation) -> _Rule:
    return _Rule(1.0, {_ADD: 1.0, _REPLACE: 2.0, _ZERO: 1.0}[relation])


def _one_for_another(sampling: events.Sampling, relation: NeighboringRelation) -> _Rule:
    return _Rule(1.0, {_ADD: 2.0, _REPLACE: 2.0, _ZERO: 1.0}[relation])


def _shuffled(sampling: events.ShuffledSampling, relation: NeighboringRelation) -> _Rule:
    return _Rule(
        1.0, {_ADD: math.sqrt(5), _REPLACE: 2.0, _ZERO: 1.0}[relation], sampling.steps_per_pass
    )


_RULES: dict[type, Callable[..., _Rule]] = {
    events.FixedSizeSampling: _one_for_another,
    events.FullBatchSampling: _full_batch,
    events.PoissonSampling: _poisson,
    events.ShuffledSampling: _shuffled,
    events.UnknownSampling: _one_for_another,
}


def _rule(event: events.Event) -> _Rule:
    if not isinstance(event, events.SampledEvent):
        return _Rule(1.0, 1.0)
    rule = _RULES.get(type(event.sampling))
    if rule is None:
        raise UnsupportedEventError(
            f"{type(event.sampling).__name__} is not supported: {event.sampling!r}."
        )
    return rule(event.sampling, event.neighboring_relation)


def _multipliers(event: events.Event) -> list[float]:
    """Returns the noise multiplier of every sum released about one sample; zero is no privacy."""
    multipliers, pending = [], [event]
    while pending:
        part = pending.pop()
        if type(part) is events.ComposedEvent:
            pending.extend(part.events)
        elif type(part) is events.GaussianSumEvent:
            multipliers.append(part.noise_multiplier)
        elif type(part) is events.NonPrivateEvent:
            multipliers.append(0.0)
        else:
            raise UnsupportedEventError(
                f"{type(part).__name__} is not supported: {part!r}. Gaussian sums are."
            )
    return multipliers


def effective_noise_multiplier(event: events.Event) -> float:
    """Returns z of all that `event` releases about one sample; infinity where that is nothing.

    Raises:
        UnsupportedEventError: the event, or one inside it, cannot be priced.
    """
    rule = _rule(event)
    multipliers = _multipliers(event.event if isinstance(event, events.SampledEvent) else event)
    if not multipliers:
        return math.inf
    multipliers = sorted(min(m, _LARGEST_MULTIPLIER) for m in multipliers)
    smallest = multipliers[0]
    if smallest == 0:
        return 0.0
    # Relative to the smallest nothing overflows, and a single group keeps its multiplier exactly.
    z = smallest / math.hypot(*(smallest / m for m in multipliers)) / rule.factor
    return z if z >= _SMALLEST_MULTIPLIER else 0.0


def collapse(event: events.Event, count: int) -> list[tuple[SampledGaussian, int]]:
    """Returns the sampled Gaussians that `count` such events amount to, each with its number.

    `count` is the total over a whole ledger: begun passes over shuffled data are rounded up once.

    Raises:
        UnsupportedEventError: the event, or one inside it, cannot be priced; the message names it.
    """
    rule, z = _rule(event), effective_noise_multiplier(event)
    if z == math.inf:
        return []
    return [(SampledGaussian(rule.sampling_probability, z), -(-count // rule.events_per_gaussian))]


class Protection(NamedTuple):
    """What an event's epsilon is about."""

    neighboring_relation: NeighboringRelation
    privacy_unit: str | None


def protection(event: events.Event) -> Protection:
    """Returns what the event's epsilon is about; a bare event: any unit, added or removed."""
    if isinstance(event, events.SampledEvent):
        return Protection(event.neighboring_relation, event.privacy_unit)
    return Protection(_ADD, None)


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
