"""Between ledgers and the events of dp-accounting. Imports dp_accounting only when called.

Both directions keep the cost, not the wording. dp-accounting has no word for a population or for
several sums with their own bounds. Its accountants differ on what they accept inside a sample. So
`to_dp_event` gives the normal form of `tfdp.accounting.normal_form`: Gaussians and others with
floating-point noise multipliers, Poisson-sampled where that is how the sample was drawn.
"""

import collections
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tfdp import events
from tfdp.accounting.mechanisms import (
    Concentrated,
    FixedSizeGaussian,
    Mechanism,
    NoPrivacy,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from tfdp.accounting.normal_form import collapse_all
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
    if isinstance(mechanism, Concentrated):
        return dpa.ZCDpEvent(rho=mechanism.rho)
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
        accountant reads them so. Its PLD accountant doubles a Gaussian's sensitivity under
        REPLACE_ONE once more, and its epsilon is then an upper bound that is not tight.

    Raises:
        UnsupportedEventError: an event cannot be priced, or two are about different units.
    """
    import dp_accounting as dpa

    totals: collections.Counter[events.Event] = collections.Counter()
    for event, count in entries:
        totals[event] += count
    common_protection(map(protection, totals))
    terms = collapse_all(totals.items())
    return dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(_dp_event(m), n) for m, n in terms])


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
        return _on_sample(event.event, depth + 1).repeated(positive_integer("count", event.count))
    raise UnsupportedEventError(f"{kind.__name__} has no counterpart in a ledger: {event!r}.")


def _replaced(event: "dp_accounting.DpEvent") -> events.Event | None:
    """Returns what dp-accounting's accountants agree on under REPLACE_ONE, or None."""
    import dp_accounting as dpa

    if type(event) in (dpa.RandomizedResponseDpEvent, dpa.NonPrivateDpEvent):
        # Their cost depends on no distance.
        return events.SampledEvent(
            events.FullBatchSampling(), _on_sample(event), NeighboringRelation.REPLACE_ONE
        )
    if type(event) is dpa.SampledWithoutReplacementDpEvent:
        # Priced by its RDP accountant alone, to which the multiplier is relative to the distance
        # of a replacement. That is twice the norm bound here.
        released = events.scale_sensitivity(_on_sample(event.event), 0.5)
        sampling = events.FixedSizeSampling(event.sample_size, event.source_dataset_size)
        return events.SampledEvent(sampling, released, NeighboringRelation.REPLACE_ONE)
    return None


def _sampled(event: "dp_accounting.DpEvent", relation: NeighboringRelation) -> events.Event:
    import dp_accounting as dpa

    if relation is NeighboringRelation.REPLACE_ONE:
        replaced = _replaced(event)
        if replaced is None:
            raise UnsupportedEventError(
                f"{type(event).__name__} is not supported under REPLACE_ONE: dp-accounting's "
                "accountants do not agree on what its noise multiplier is relative to there: "
                f"{event!r}. Use tfdp's own events."
            )
        return replaced
    if type(event) is dpa.SampledWithoutReplacementDpEvent:
        raise UnsupportedEventError(
            "SampledWithoutReplacementDpEvent is supported under REPLACE_ONE only, as in "
            f"dp-accounting. Received: {event!r} under {relation.name}."
        )
    if type(event) is dpa.PoissonSampledDpEvent:
        sampling: events.Sampling = events.PoissonSampling(event.sampling_probability)
        return events.SampledEvent(sampling, _on_sample(event.event), relation)
    if type(event) is dpa.TruncatedSubsampledGaussianDpEvent:
        sampling = events.TruncatedPoissonSampling(
            event.sampling_probability, event.dataset_size, event.truncated_batch_size
        )
        released = events.GaussianSumEvent(l2_norm_bound=1.0, noise_stddev=event.noise_multiplier)
        return events.SampledEvent(sampling, released, relation)
    inner = _on_sample(event)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        return inner
    return events.SampledEvent(events.FullBatchSampling(), inner, relation)


def _is_nothing(event: "dp_accounting.DpEvent") -> bool:
    """Whether nothing is released, because nobody is ever in the sample."""
    import dp_accounting as dpa

    if type(event) is dpa.PoissonSampledDpEvent:
        return bool(event.sampling_probability == 0)
    if type(event) is dpa.SampledWithoutReplacementDpEvent:
        return bool(event.sample_size == 0)
    if type(event) is dpa.TruncatedSubsampledGaussianDpEvent:
        fields = (event.sampling_probability, event.truncated_batch_size, event.dataset_size)
        return 0 in fields
    return type(event) is dpa.NoOpDpEvent


def is_dp_event(event: object) -> bool:
    """Whether it is an event of dp-accounting."""
    # An instance exists only where its module was imported, so nothing need be imported to ask.
    module = sys.modules.get("dp_accounting.dp_event")
    return module is not None and isinstance(event, module.DpEvent)


def from_dp_event(
    event: "dp_accounting.DpEvent",
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> list[LedgerEntry]:
    """Returns events of ours, each with a count, that cost what a dp-accounting event costs.

    Edge cases:
        Samples in which nobody ever is (q = 0) cost nothing. A truncated sample is charged with
        the probability that it is too large, as ours are, which is more than dp-accounting charges.

    Args:
        event: Gaussian and Laplace mechanisms, Poisson-sampled or not, Gaussians on truncated
            samples and on samples of fixed size, and randomized response, composed in any way;
            NonPrivateDpEvent and NoOpDpEvent.
        neighboring_relation: How the event is to be read; it does not say so itself. Under
            REPLACE_ONE samples of fixed size, randomized response and NonPrivateDpEvent are read;
            what a noise multiplier of others is relative to there, dp-accounting's accountants do
            not agree on.

    Raises:
        UnsupportedEventError: the event, or one inside it, has no counterpart under this relation.

    Example:
        >>> import dp_accounting
        >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(4.0))
        >>> [(found, count)] = from_dp_event(dp_accounting.SelfComposedDpEvent(step, 100))
        >>> found.sampling, found.event.noise_multiplier, count
        (PoissonSampling(sampling_probability=0.01, population_size=None), 4.0, 100)
    """
    import dp_accounting as dpa

    entries, pending = [], [(event, 1)]
    while pending:
        part, count = pending.pop()
        if type(part) is dpa.ComposedDpEvent:
            pending.extend((inner, count) for inner in reversed(part.events))
        elif type(part) is dpa.SelfComposedDpEvent:
            if part.count != 0:
                pending.append((part.event, count * positive_integer("count", part.count)))
        elif not _is_nothing(part):
            entries.append(LedgerEntry(_sampled(part, neighboring_relation), count))
    return entries
