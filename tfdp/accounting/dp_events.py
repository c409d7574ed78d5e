"""Between ledgers and the events of dp-accounting. Imports dp_accounting only when called.

Both directions keep the cost, not the wording: dp-accounting has no word for a population or for
several sums with their own bounds, and its accountants differ on what they accept inside a sample.
So `to_dp_event` gives the normal form of `tfdp.accounting.normal_form`: Gaussians and others with
floating-point noise multipliers, Poisson-sampled where that is how the sample was drawn.
"""

import collections
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tfdp import events
from tfdp.accounting.mechanisms import (
    FixedSizeGaussian,
    Mechanism,
    NoPrivacy,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from tfdp.accounting.normal_form import collapse
from tfdp.events import NeighboringRelation, UnsupportedEventError
from tfdp.events.arguments import positive_integer
from tfdp.events.protection import common_protection, protection
from tfdp.ledger.entry import LedgerEntry

if TYPE_CHECKING:
    import dp_accounting

_RELATION_NAMES = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "ADD_OR_REMOVE_ONE",
    NeighboringRelation.REPLACE_ONE: "REPLACE_ONE",
    NeighboringRelation.ZERO_OUT: "REPLACE_SPECIAL",
}
_MAX_DEPTH = 32


def dp_accounting_relation(relation: NeighboringRelation) -> "dp_accounting.NeighboringRelation":
    """Returns dp-accounting's name of a neighbouring relation."""
    import dp_accounting

    return dp_accounting.NeighboringRelation[_RELATION_NAMES[relation]]


def check_relation(
    accountant: "dp_accounting.PrivacyAccountant", relation: NeighboringRelation
) -> None:
    """Raises ValueError if the accountant was made for another relation than this.

    What `to_dp_event` gives moves by one unit, or has the factor of its relation in it, so that
    ADD_OR_REMOVE_ONE and ZERO_OUT have one price there.
    """
    expected = dp_accounting_relation(relation)
    one_unit = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.ZERO_OUT)
    accepted = one_unit if relation in one_unit else (relation,)
    if accountant.neighboring_relation not in map(dp_accounting_relation, accepted):
        raise ValueError(
            f"The ledger's events are under {relation.name}, the accountant is for "
            f"{accountant.neighboring_relation.name}. Construct it with "
            f"neighboring_relation=dp_accounting.NeighboringRelation.{expected.name}."
        )


def _dp_event(mechanism: Mechanism) -> "dp_accounting.DpEvent":
    import dp_accounting as dpa

    if isinstance(mechanism, NoPrivacy):
        return dpa.NonPrivateDpEvent()
    if isinstance(mechanism, FixedSizeGaussian):
        return dpa.SampledWithoutReplacementDpEvent(
            mechanism.population_size,
            mechanism.sample_size,
            dpa.GaussianDpEvent(mechanism.noise_multiplier),
        )
    if isinstance(mechanism, RandomizedResponse):
        return dpa.RandomizedResponseDpEvent(mechanism.noise_parameter, mechanism.num_buckets)
    if not isinstance(mechanism, (SampledGaussian, SampledLaplace)):
        raise UnsupportedEventError(f"{mechanism!r} has no counterpart in dp-accounting.")
    is_gaussian = isinstance(mechanism, SampledGaussian)
    release = (dpa.GaussianDpEvent if is_gaussian else dpa.LaplaceDpEvent)(
        mechanism.noise_multiplier
    )
    if mechanism.sampling_probability == 1:
        return release
    return dpa.PoissonSampledDpEvent(mechanism.sampling_probability, release)


def to_dp_event(entries: Iterable[LedgerEntry]) -> "dp_accounting.DpEvent":
    """Returns a dp-accounting event that costs what the entries together cost.

    Guarantees:
        Its noise multipliers already contain the factor two of a replacement. dp-accounting's RDP
        accountant reads them so; its PLD accountant doubles a Gaussian's sensitivity under
        REPLACE_ONE once more, and its epsilon is then an upper bound that is not tight.

    Raises:
        UnsupportedEventError: an event cannot be priced, or two are about different units.
    """
    import dp_accounting as dpa

    totals: collections.Counter[events.Event] = collections.Counter()
    for event, count in entries:
        totals[event] += count
    common_protection(map(protection, totals))
    terms = [term for event, count in totals.items() for term in collapse(event, count)]
    return dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(_dp_event(m), n) for m, n in terms])


def _scaled(event: events.Event, count: int) -> events.Event:
    """Returns `count` releases of `event` about the same sample as one release of the same cost."""
    if count == 1:
        return event
    if isinstance(event, events.ComposedEvent):
        return events.ComposedEvent(tuple(_scaled(part, count) for part in event.events))
    # k Gaussians with bound S and noise sigma are one with bound sqrt(k) S and noise sigma; k
    # Laplace releases are at most one with bound k S.
    factor = float(count) if isinstance(event, events.LaplaceSumEvent) else math.sqrt(count)
    return events.scale_sensitivity(event, factor)


def _on_sample(event: "dp_accounting.DpEvent", depth: int = 0) -> events.Event:
    """Returns what `event` releases about one sample."""
    import dp_accounting as dpa

    kind = type(event)
    if depth > _MAX_DEPTH:
        raise UnsupportedEventError(
            f"Events nested deeper than {_MAX_DEPTH} levels are not supported."
        )
    if kind is dpa.GaussianDpEvent:
        return events.GaussianSumEvent(l2_norm_bound=1.0, noise_stddev=event.noise_multiplier)
    if kind is dpa.LaplaceDpEvent:
        return events.LaplaceSumEvent(l1_norm_bound=1.0, noise_scale=event.noise_multiplier)
    if kind is dpa.RandomizedResponseDpEvent:
        return events.RandomizedResponseEvent(event.noise_parameter, event.num_buckets)
    if kind is dpa.NonPrivateDpEvent:
        return events.NonPrivateEvent()
    if kind is dpa.NoOpDpEvent or (kind is dpa.SelfComposedDpEvent and event.count == 0):
        return events.ComposedEvent(())
    if kind is dpa.ComposedDpEvent:
        return events.ComposedEvent(tuple(_on_sample(part, depth + 1) for part in event.events))
    if kind is dpa.SelfComposedDpEvent:
        return _scaled(_on_sample(event.event, depth + 1), positive_integer("count", event.count))
    raise UnsupportedEventError(f"{kind.__name__} has no counterpart in a ledger: {event!r}.")


def _sampled(event: "dp_accounting.DpEvent", relation: NeighboringRelation) -> events.Event:
    import dp_accounting as dpa

    if type(event) is dpa.PoissonSampledDpEvent:
        sampling = events.PoissonSampling(event.sampling_probability)
        return events.SampledEvent(sampling, _on_sample(event.event), relation)
    inner = _on_sample(event)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        return inner
    return events.SampledEvent(events.FullBatchSampling(), inner, relation)


def entries_of(event: "dp_accounting.DpEvent", relation: NeighboringRelation) -> list[LedgerEntry]:
    """Returns ledger entries that cost what a dp-accounting event costs.

    Args:
        event: Gaussian and Laplace mechanisms, Poisson-sampled or not, and randomized response,
            composed in any way; NonPrivateDpEvent and NoOpDpEvent.
        relation: How the event is to be read; it does not say so itself. REPLACE_ONE is refused,
            because dp-accounting's accountants do not agree on what a noise multiplier is relative
            to there.

    Raises:
        UnsupportedEventError: the event, or one inside it, has no counterpart, or `relation` is
            REPLACE_ONE.
    """
    import dp_accounting as dpa

    if relation is NeighboringRelation.REPLACE_ONE:
        raise UnsupportedEventError("dp-accounting's events are not supported under REPLACE_ONE.")
    entries, pending = [], [(event, 1)]
    while pending:
        part, count = pending.pop()
        if type(part) is dpa.ComposedDpEvent:
            pending.extend((inner, count) for inner in reversed(part.events))
        elif type(part) is dpa.SelfComposedDpEvent:
            if part.count != 0:
                pending.append((part.event, count * positive_integer("count", part.count)))
        elif type(part) is not dpa.NoOpDpEvent:
            entries.append(LedgerEntry(_sampled(part, relation), count))
    return entries
