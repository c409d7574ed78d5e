"""What a sampling policy is worth under a neighbouring relation: one table of all pairs.

A policy and a relation give the factor f by which a step's neighbouring samples may differ, and the
amplification by sampling, with probability q or n of N units:

| sampling | add or remove one | replace one | zero out |
|---|---|---|---|
| none (a bare event) | f = 1 | | |
| Poisson | f = 1, q | f = 1, q, twice in a row | f = 1, q |
| truncated Poisson | f = 1 or f = 2, q | as Poisson, and a delta | f = 1 or f = 2, q |
| full batch | f = 1 | f = 2 | f = 1 |
| fixed size | f = 2, q = n / N | f = 2, n of N | f = 1 |
| fixed order | f = 2, all the steps | f = 2 | f = 1 |
| groups in turn, Poisson | refused | as Poisson | as Poisson |
| balls in bins, once a run | f = 1, 1 of b | f = 1, 1 of b, twice in a row | f = 1, 1 of b |
| separated, once a pass | f = 1, p and b | f = 2 | f = 1, p and b |
| random allocation, once a pass | f = 1, 1 of t | f = 1, 1 of t, twice in a row | f = 1, 1 of t |
| shuffled, once a pass | f = 2 and f = 1: sqrt(5) | f = 2 | f = 1 |
| unknown | f = 2: one comes in, another goes out | f = 2 | f = 1 |

A record that is added to a shuffled data set takes the place of another record, and this one moves
to the last batch. So one batch moves by 2 S and the last batch by S, together by sqrt(5) S. The
other batches of the pass do not differ. So a pass costs one Gaussian, and a begun pass costs as
much as a whole one.

A sample of fixed size either lacks the unit in which the data sets differ, or holds it in the place
of another unit, which is uniform among the rest. Divergences are jointly convex. So adding or
removing a unit costs at most as much as the worst of these places: q = n / N and a replacement,
f = 2 (Birrell et al. 2024, arXiv:2408.10456).

In a fixed order a unit that is added moves all units behind it by one place: in every step one may
come in and another go out. In groups that take turns it moves them to other groups, for which there
is no price. Noise that is independent from step to step is charged in every step of a fixed order,
as if each unit were in all of them. What correlated noise costs follows the order
(`tfdp.accounting.correlated`).

Random allocation gives each unit one of the t steps of a pass, uniformly, whatever the others have.
The steps of a pass cost together one mixture (`tfdp.accounting.losses.allocation`). A begun pass
costs as much as a whole one. If a unit is in k of t steps, these are k times one of floor(t / k)
(Feldman and Shenfeld 2025, arXiv:2502.08202, section 4). To see it, divide the steps at random into
k equal parts, and some that are left over, so that no part has two of the unit's. Whoever knows
that division as well sees k times one of floor(t / k), and no more.

Balls in bins give each unit one of b bins for all steps, and bins take turns. Noise of the E steps
that a unit is in counts together. So all steps cost one mixture over b bins, of a sum that moves
sqrt(E) as far. With correlated noise they cost a `BinnedGaussian`.

Of samples in which a unit's steps are at least b apart it is in at most ceil(n / b) of the n steps
of a pass. So a pass costs at most so many of its steps without sampling, whatever is released. What
Gaussian sums cost is a mixture over the unit's steps (`SeparatedGaussian`).

Of data sets that are k neighbours apart, of N units and of N - k, the ones on the way have fewer
than N. One more unit is in a sample of n of them with probability n / (N - k + 1) at most, whatever
is known of the others of the group: so many of it are in a sample, or fewer, as independent draws
with that probability give. For groups it is q. Truncated samples are charged as those of N + k
units are. Nothing else here depends on how many units there are, but a pass over shuffled data,
whose steps are taken to be as many for all the data sets.

Of a Poisson sample that is too large a part is dropped. For Gaussian sums neighbours then differ by
two units at most, one that comes and one that is driven out, with the probability that the others'
sample is so large (`tfdp.accounting.mechanisms.TruncatedGaussian`). Else, and under replace one,
and for accountants that know divergences only, the price counts such a sample as lost: its
probability goes into delta (Chua et al. 2024, arXiv:2411.04205).
"""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from tfdp import events
from tfdp.accounting.amplification import (
    ALLOCATION,
    ALLOCATION_REPLACE,
    FIXED_SIZE_REPLACE,
    POISSON,
    POISSON_REPLACE,
    SEPARATED,
    TRUNCATED,
    Amplification,
)
from tfdp.accounting.checked_rules import wrong_with
from tfdp.events import NeighboringRelation, UnsupportedEventError
from tfdp.events.arguments import check_type
from tfdp.events.registry import is_ours, registered

_ADD, _REPLACE, _ZERO = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.ZERO_OUT,
)


class SamplingRule(NamedTuple):
    """How a sampling policy is priced under a relation.

    Attributes:
        factors: f of every step that may differ.
        amplification: What sampling makes of a mechanism; None where it does nothing. One of the
            tables of `tfdp.accounting.amplification`, such as `POISSON`, or one of your own.
        parameters: Of the functions of `amplification`; for `POISSON` the probability q alone.
        events_per_mechanism: As in `NormalForm`.
        failure_probability: As in `NormalForm`.
        repetitions: How many of the mechanisms one event, or a pass, is, but of those that are
            already what a whole pass is (`SeparatedGaussian`).
        drawn_together: Whether the steps of a pass were drawn together, so that only together they
            are what `amplification` says.
        drawn_once: What names the draw that all steps of the sampling have in common, whatever the
            pass or the run; None where there is none. Together they cost what
            `tfdp.accounting.bins` says.
        slot: Which part of that draw a step is about.
        otherwise: As in `NormalForm`.
    """

    factors: tuple[float, ...]
    amplification: Amplification | None = None
    parameters: tuple[Any, ...] = ()
    events_per_mechanism: int = 1
    failure_probability: float = 0.0
    repetitions: int = 1
    drawn_together: bool = False
    drawn_once: Hashable = None
    slot: Hashable = None
    otherwise: "SamplingRule | None" = None


_EVERYTHING = SamplingRule((1.0,))


def _poisson(sampling: Any) -> SamplingRule:
    q = sampling.sampling_probability
    return _EVERYTHING if q == 1 else SamplingRule((1.0,), POISSON, (q,))


def _poisson_replace(sampling: Any) -> SamplingRule:
    q = sampling.sampling_probability
    return SamplingRule((2.0,)) if q == 1 else SamplingRule((1.0,), POISSON_REPLACE, (q,))


def _truncated(
    rule: Callable[[Any], SamplingRule], added: int
) -> Callable[[events.TruncatedPoissonSampling], SamplingRule]:
    def truncated(sampling: events.TruncatedPoissonSampling) -> SamplingRule:
        from scipy import stats

        # Of the larger of the neighbours, which has the larger samples.
        q, population = sampling.sampling_probability, sampling.population_size + added
        tail = stats.binom.sf(sampling.max_sample_size, population, q)
        found = rule(sampling)._replace(failure_probability=float(tail))
        if found.amplification is not POISSON or not tail:
            return found
        # Of the others those that leave no place for one more.
        crowded = stats.binom.sf(sampling.max_sample_size - 1, population - 1, q)
        parameters = (q, float(crowded), not added)
        return found._replace(amplification=TRUNCATED, parameters=parameters, otherwise=found)

    return truncated


def _fixed_size_add(sampling: events.FixedSizeSampling) -> SamplingRule:
    if sampling.sample_size == sampling.population_size:
        return SamplingRule((2.0,))
    return SamplingRule((2.0,), POISSON, (sampling.sample_size / sampling.population_size,))


def _fixed_size_replace(sampling: events.FixedSizeSampling) -> SamplingRule:
    n, population = sampling.sample_size, sampling.population_size
    if n == population:
        return SamplingRule((2.0,))
    return SamplingRule((2.0,), FIXED_SIZE_REPLACE, (n / population, n, population))


def _shuffled(*factors: float) -> Callable[[events.ShuffledSampling], SamplingRule]:
    return lambda sampling: SamplingRule(factors, events_per_mechanism=sampling.steps_per_pass)


def _unamplified(factor: float) -> Callable[[events.Sampling], SamplingRule]:
    return lambda sampling: SamplingRule((factor,))


def _allocated(
    amplification: Amplification,
) -> Callable[[events.RandomAllocationSampling], SamplingRule]:
    def allocated(sampling: events.RandomAllocationSampling) -> SamplingRule:
        t, k = sampling.num_steps, sampling.participations
        return SamplingRule((1.0,), amplification, (t // k,), t, 0.0, k, True)

    return allocated


def _binned(amplification: Amplification) -> Callable[[events.BallsInBinsSampling], SamplingRule]:
    def binned(sampling: events.BallsInBinsSampling) -> SamplingRule:
        b, index = sampling.num_bins, sampling.bin_index
        once = b, sampling.assignment
        return SamplingRule((1.0,), amplification, (b,), drawn_once=once, slot=index)

    return binned


def _separated(sampling: events.MinSeparationSampling) -> SamplingRule:
    p, b, n = sampling.sampling_probability, sampling.min_separation, sampling.num_steps
    return SamplingRule((1.0,), SEPARATED, (p, b, n), n, 0.0, -(-n // b), True)


def _separated_replace(sampling: events.MinSeparationSampling) -> SamplingRule:
    return _separated(sampling)._replace(factors=(2.0,), amplification=None, drawn_together=False)


def _no_groups(sampling: events.CyclicPoissonSampling) -> SamplingRule:
    raise UnsupportedEventError(
        f"CyclicPoissonSampling is not supported under {_ADD.name}, where a unit that is added "
        f"moves others to other groups: {sampling!r}. Declare {_ZERO.name} or {_REPLACE.name}."
    )


_RULES: dict[tuple[type, NeighboringRelation], Callable[[Any], SamplingRule]] = {
    (events.BallsInBinsSampling, _ADD): _binned(ALLOCATION),
    (events.BallsInBinsSampling, _REPLACE): _binned(ALLOCATION_REPLACE),
    (events.BallsInBinsSampling, _ZERO): _binned(ALLOCATION),
    (events.CyclicPoissonSampling, _ADD): _no_groups,
    (events.CyclicPoissonSampling, _REPLACE): _poisson_replace,
    (events.CyclicPoissonSampling, _ZERO): _poisson,
    (events.FixedOrderSampling, _ADD): _unamplified(2.0),
    (events.FixedOrderSampling, _REPLACE): _unamplified(2.0),
    (events.FixedOrderSampling, _ZERO): _unamplified(1.0),
    (events.FixedSizeSampling, _ADD): _fixed_size_add,
    (events.FixedSizeSampling, _REPLACE): _fixed_size_replace,
    (events.FixedSizeSampling, _ZERO): _unamplified(1.0),
    (events.FullBatchSampling, _ADD): _unamplified(1.0),
    (events.FullBatchSampling, _REPLACE): _unamplified(2.0),
    (events.FullBatchSampling, _ZERO): _unamplified(1.0),
    (events.MinSeparationSampling, _ADD): _separated,
    (events.MinSeparationSampling, _REPLACE): _separated_replace,
    (events.MinSeparationSampling, _ZERO): _separated,
    (events.PoissonSampling, _ADD): _poisson,
    (events.PoissonSampling, _REPLACE): _poisson_replace,
    (events.PoissonSampling, _ZERO): _poisson,
    (events.RandomAllocationSampling, _ADD): _allocated(ALLOCATION),
    (events.RandomAllocationSampling, _REPLACE): _allocated(ALLOCATION_REPLACE),
    (events.RandomAllocationSampling, _ZERO): _allocated(ALLOCATION),
    (events.ShuffledSampling, _ADD): _shuffled(2.0, 1.0),
    (events.ShuffledSampling, _REPLACE): _shuffled(2.0),
    (events.ShuffledSampling, _ZERO): _shuffled(1.0),
    (events.TruncatedPoissonSampling, _ADD): _truncated(_poisson, 1),
    (events.TruncatedPoissonSampling, _REPLACE): _truncated(_poisson_replace, 0),
    (events.TruncatedPoissonSampling, _ZERO): _truncated(_poisson, 0),
    (events.UnknownSampling, _ADD): _unamplified(2.0),
    (events.UnknownSampling, _REPLACE): _unamplified(2.0),
    (events.UnknownSampling, _ZERO): _unamplified(1.0),
}


# Class of a sampling -> the module that its rule is from, where that is not tfdp's.
_RULES_BY: dict[type, str] = {}


def register_sampling_rule(
    sampling_class: type[events.Sampling],
    relation: NeighboringRelation,
    rule: Callable[[Any], SamplingRule],
) -> None:
    """Says what a description of samples that is not tfdp's is worth under a neighbouring relation.

    tfdp cannot check the rule. Reports and `tfdp replay` name the package that it is from.

    Args:
        sampling_class: A registered class of samplings (`tfdp.events.register`).
        relation: One of the relations; under the others the sampling has no price.
        rule: A function of a description, that returns the `SamplingRule`.

    Raises:
        TypeError: the class is not registered, the relation is none, or the rule cannot be called.
        ValueError: the class is tfdp's, or has rules from another module.
    """
    name = getattr(sampling_class, "__name__", repr(sampling_class))
    if registered(name) is not sampling_class or not issubclass(sampling_class, events.Sampling):
        raise TypeError(
            "Register the class of samplings first, by tfdp.events.register. "
            f"Received: {sampling_class!r}."
        )
    check_type("relation", relation, NeighboringRelation)
    if not callable(rule):
        raise TypeError(f"A rule must be a function. Received: {rule!r}.")
    owner = _RULES_BY.get(sampling_class)
    if is_ours(sampling_class) or owner not in (None, str(rule.__module__)):
        raise ValueError(f"{name} has rules already, by {owner or 'tfdp'}.")
    _RULES[sampling_class, relation] = rule
    _RULES_BY[sampling_class] = str(rule.__module__)


def sampling_rules_of_others(event: events.Event) -> set[str]:
    """Returns whose rule the event's sampling is priced by, where that is not tfdp's."""
    kind = type(event.sampling) if isinstance(event, events.SampledEvent) else None
    return {f"{kind.__name__} (by {_RULES_BY[kind]})"} if kind in _RULES_BY else set()


def _on_the_way(
    sampling: events.Sampling, relation: NeighboringRelation, group_size: int
) -> events.Sampling:
    """Returns the dearest sampling of all neighbours on the way from one data set to the other."""
    if relation is not _ADD or group_size == 1:
        return sampling
    if isinstance(sampling, events.FixedSizeSampling):
        least = max(sampling.sample_size, sampling.population_size - group_size + 1)
        return dataclasses.replace(sampling, population_size=least)
    if isinstance(sampling, events.TruncatedPoissonSampling):
        most = sampling.population_size + group_size - 1
        return dataclasses.replace(sampling, population_size=most)
    return sampling


def sampling_of_groups(event: events.Event) -> events.Sampling | None:
    """Returns the event's sampling if what groups cost follows from how many units there are."""
    if not isinstance(event, events.SampledEvent):
        return None
    between = _on_the_way(event.sampling, event.neighboring_relation, 2)
    return None if between == event.sampling else event.sampling


def sampling_rule(event: events.Event, group_size: int = 1) -> SamplingRule:
    """Returns how the event's sampling is priced; a bare event's: the unit is in it, for sure.

    Args:
        event: The event.
        group_size: How many neighbours the data sets are apart; the rule is that of each two of
            them on the way. Rules of other packages do not see it.

    Raises:
        UnsupportedEventError: no price is known for the policy under the relation.
    """
    if not isinstance(event, events.SampledEvent):
        return _EVERYTHING
    rule = _RULES.get((type(event.sampling), event.neighboring_relation))
    if rule is None:
        raise UnsupportedEventError(
            f"{type(event.sampling).__name__} is not supported under "
            f"{event.neighboring_relation.name}: {event.sampling!r}."
        )
    found = rule(_on_the_way(event.sampling, event.neighboring_relation, group_size))
    wrong = wrong_with(found) if isinstance(found, SamplingRule) else "positive factors"
    if wrong is not None:
        raise UnsupportedEventError(
            f"The rule of a {type(event.sampling).__name__} must return a SamplingRule with "
            f"{wrong}. Received: {found!r}."
        )
    if (found.drawn_once is None) != (found.slot is None):
        raise UnsupportedEventError(
            f"The rule of a {type(event.sampling).__name__} must name both what was drawn once and "
            f"the slot that a step is about. Received: {found!r}."
        )
    return found
