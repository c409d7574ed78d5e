"""Every event as a few mechanisms: the one form that all accountants price.

All Gaussian sums released about one sample are together one Gaussian (McMahan et al. 2018,
arXiv:1812.06210, section 3). With l2 bounds S_g, noise sigma_g and a factor f by which a step's
neighbouring samples may differ,

    1 / z^2 = sum_g (f * S_g / sigma_g)^2.

The sampling policy and the neighbouring relation give f and the amplification by sampling
(`tfdp.accounting.sampling_rules`). Three probabilities go into delta. One is that by which discrete
Gaussian noise differs from Gaussian noise (`tfdp.accounting.discrete_noise`), because the former is
priced as the latter. Another is that of samples of which a policy drops a part. The third is the
delta of a release that is (epsilon, delta)-private. Such a release is dominated by a pair of
outputs that are told apart with probability delta, and are those of a pure mechanism otherwise
(Kairouz, Oh and Viswanath 2015, arXiv:1311.0776, theorem 3.4).
"""

import collections
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from tfdp import events
from tfdp.accounting.amplification import UNAMPLIFIED, as_a_whole, pure_epsilon
from tfdp.accounting.checked_rules import amplify
from tfdp.accounting.correlated import Run, is_correlated, run_of
from tfdp.accounting.discrete_noise import distance_from_rounded_gaussian
from tfdp.accounting.integer_sums import (
    discrete_gaussian_shares,
    discrete_gaussian_sum,
    skellam_shares,
)
from tfdp.accounting.mechanisms import (
    BoundedRange,
    Mechanism,
    NoPrivacy,
    PureEpsilon,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    TruncatedGaussian,
    without_parts,
)
from tfdp.accounting.parallel import worst_part
from tfdp.accounting.passes import known_step, times
from tfdp.accounting.ranges import LARGEST_MULTIPLIER, SMALLEST_MULTIPLIER, within_range
from tfdp.accounting.runs import best_of_runs
from tfdp.accounting.sampling_rules import SamplingRule, sampling_rule
from tfdp.events import NeighboringRelation, UnsupportedEventError
from tfdp.events.protection import protection
from tfdp.events.runs import SelectedRun

_ADD, _REPLACE, _ZERO = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.ZERO_OUT,
)


class NormalForm(NamedTuple):
    """What an event amounts to.

    Attributes:
        mechanisms: What an accountant prices, `times` for every `events_per_mechanism` events.
        events_per_mechanism: 1, or the steps of a pass; a begun pass costs as much as a whole one.
        failure_probability: So far, for every event, the true outputs may be from those of the
            mechanisms, in total variation.
        lost_probability: With this probability, for every event, the worst two outputs are told
            apart with certainty; else they are those of the mechanisms.
        run: The run that the event is a step of; the mechanisms are then those of the whole run.
        drawn_together: What the steps of a pass have in common; they cost together what
            `tfdp.accounting.passes` says, and beside a run on the same pass, or two runs, what is
            charged where it is known which steps a unit is in. None where there are no passes.
        repetitions: As in `SamplingRule`.
        slot: The bin that the step is about, or its place in the run, where bins are drawn once.
        otherwise: The same event, of which a part goes into `failure_probability` that is in the
            mechanisms here; for accountants that do not compute distributions, whose bounds are
            better so. None where there is no other way.
    """

    mechanisms: tuple[Mechanism, ...]
    events_per_mechanism: int = 1
    failure_probability: float = 0.0
    lost_probability: float = 0.0
    run: Run | None = None
    drawn_together: Hashable = None
    repetitions: int = 1
    slot: Hashable = None
    otherwise: "NormalForm | None" = None

    def times(self, mechanism: Mechanism) -> int:
        """Returns how often one of the mechanisms counts."""
        return times(mechanism, self.repetitions)

    @property
    def stands_alone(self) -> bool:
        """Whether the price of an event is one of its own, that adds to those of others."""
        alone = self.run is None and self.drawn_together is None
        return alone and self.events_per_mechanism == 1


# What an event says about one sample, once that moves by `factor` units.

_Release = Callable[[Any, float, NeighboringRelation], Mechanism | None]


def _laplace(event: events.LaplaceSumEvent, factor: float, _: NeighboringRelation) -> Mechanism:
    z = min(event.noise_multiplier, LARGEST_MULTIPLIER) / factor
    return within_range(SampledLaplace(1.0, z))


def _exponential(
    event: events.ExponentialMechanismEvent, factor: float, _: NeighboringRelation
) -> Mechanism:
    # The ranges of several neighbours in a row add up.
    return within_range(BoundedRange(event.epsilon * factor))


def _pure(event: events.PureEpsilonEvent, factor: float, _: NeighboringRelation) -> Mechanism:
    return within_range(PureEpsilon(event.epsilon * factor))


def _epsilon_delta(
    event: events.EpsilonDeltaEvent, factor: float, _: NeighboringRelation
) -> Mechanism | None:
    # Its delta is in `_lost`.
    return within_range(PureEpsilon(event.epsilon * factor)) if event.epsilon else None


def _randomized_response(
    event: events.RandomizedResponseEvent, factor: float, relation: NeighboringRelation
) -> Mechanism | None:
    if relation is _ADD:
        raise UnsupportedEventError(
            f"RandomizedResponseEvent is not supported under {relation.name}, where the number of "
            f"reports tells neighbours apart: {event!r}. Declare {_REPLACE.name} or {_ZERO.name}."
        )
    if event.noise_parameter == 1:
        return None
    if event.noise_parameter == 0:
        return NoPrivacy()
    return within_range(
        RandomizedResponse(event.noise_parameter, event.num_buckets, relation is _ZERO)
    )


def _non_private(event: events.NonPrivateEvent, factor: float, _: NeighboringRelation) -> Mechanism:
    return NoPrivacy()


# Gaussian sums are not in the table: all on one sample are one, the discrete ones too.
_GAUSSIANS = (events.DiscreteGaussianSumEvent, events.GaussianSumEvent)
RELEASES: dict[type, _Release] = {
    events.EpsilonDeltaEvent: _epsilon_delta,
    events.ExponentialMechanismEvent: _exponential,
    events.GaussianSharesSumEvent: discrete_gaussian_shares,
    events.IntegerGaussianSumEvent: discrete_gaussian_sum,
    events.LaplaceSumEvent: _laplace,
    events.NonPrivateEvent: _non_private,
    events.PureEpsilonEvent: _pure,
    events.RandomizedResponseEvent: _randomized_response,
    events.SkellamSharesSumEvent: skellam_shares,
}


def _leaves(event: events.Event) -> list[events.Event]:
    leaves, pending = [], [event]
    while pending:
        part = pending.pop()
        if type(part) is events.ComposedEvent:
            pending.extend(part.events)
        elif is_correlated(part) or type(part) in (
            *_GAUSSIANS,
            *RELEASES,
            events.ParallelComposition,
        ):
            leaves.append(part)
        else:
            raise UnsupportedEventError(
                f"{type(part).__name__} is not supported: {part!r}. "
                f"Known: {', '.join(sorted(t.__name__ for t in (*_GAUSSIANS, *RELEASES)))}. "
                "An event of another package needs a price of its own "
                "(tfdp.accounting.register_price)."
            )
    return leaves


def _multiplier(multipliers: Iterable[float], factors: tuple[float, ...]) -> float:
    """Returns z of all the Gaussians together; infinity where there are none."""
    ordered = sorted(min(m, LARGEST_MULTIPLIER) for m in multipliers)
    if not ordered:
        return math.inf
    smallest = ordered[0]
    if smallest == 0:
        return 0.0
    # Relative to the smallest nothing overflows, and a single group keeps its multiplier exactly.
    z = smallest / math.hypot(*(smallest / m for m in ordered)) / math.hypot(*factors)
    return z if z >= SMALLEST_MULTIPLIER else 0.0


def _mechanisms(
    leaves: list[events.Event], factors: tuple[float, ...], relation: NeighboringRelation
) -> list[Mechanism]:
    """Returns what the leaves, all about one sample, cost without amplification."""
    if any(map(is_correlated, leaves)):
        raise UnsupportedEventError(
            "Correlated noise is not supported in a ParallelComposition: its runs are about the "
            f"whole of the data. Received: {leaves!r:.500}."
        )
    gaussians: list[Any] = [leaf for leaf in leaves if isinstance(leaf, _GAUSSIANS)]
    return _of_leaves(leaves, [leaf.noise_multiplier for leaf in gaussians], factors, relation)


def _of_leaves(
    leaves: list[events.Event],
    multipliers: list[float],
    factors: tuple[float, ...],
    relation: NeighboringRelation,
) -> list[Mechanism]:
    z = _multiplier(multipliers, factors)
    found: list[Mechanism | None] = []
    if z != math.inf:
        found.append(SampledGaussian(1.0, z) if z else NoPrivacy())
    for leaf in leaves:
        if type(leaf) in RELEASES:
            release = RELEASES[type(leaf)]
            # A report is about one unit, whatever is done to it: it has no size to scale.
            scales = factors[:1] if type(leaf) is events.RandomizedResponseEvent else factors
            found.extend(release(leaf, factor, relation) for factor in scales)
        elif type(leaf) is events.ParallelComposition:
            parts = [_mechanisms(_leaves(part), factors, relation) for part in leaf.events]
            if relation is _REPLACE or factors != (1.0,):
                raise UnsupportedEventError(
                    "ParallelComposition is not supported where neighbouring samples differ by "
                    f"more than one unit that comes or goes ({relation.name}, {factors=}): "
                    f"a unit may leave one part and come to another. Received: {leaf!r}."
                )
            found.extend(worst_part(parts))
    return [mechanism for mechanism in found if mechanism is not None]


def _lost(
    leaves: list[events.Event], factors: tuple[float, ...], relation: NeighboringRelation
) -> float:
    """Returns the probability with which (epsilon, delta)-private releases are told apart."""
    # A replacement is two neighbours in a row, whatever a sampling rule makes of it.
    steps = [max(math.ceil(f), 2 if relation is _REPLACE else 1) for f in factors]
    lost = 0.0
    for leaf in leaves:
        if type(leaf) is events.EpsilonDeltaEvent:
            # Of k neighbours in a row: delta (1 + e^epsilon + ... + e^((k - 1) epsilon)).
            weights = [math.exp(min(i * leaf.epsilon, 700.0)) for k in steps for i in range(k)]
            lost += leaf.delta * math.fsum(weights)
        elif type(leaf) is events.ParallelComposition:
            lost += max(_lost(_leaves(part), factors, relation) for part in leaf.events)
    return min(1.0, lost)


def _failure(leaves: list[events.Event]) -> float:
    """Returns by how much outputs may differ from those of the mechanisms, in total variation."""
    total = []
    for leaf in leaves:
        if isinstance(leaf, events.DiscreteGaussianSumEvent):
            steps = leaf.noise_stddev / leaf.granularity
            total.append(distance_from_rounded_gaussian(steps, leaf.max_coordinates))
        elif type(leaf) is events.ParallelComposition:
            # Neighbours differ in one part.
            total.append(max(_failure(_leaves(part)) for part in leaf.events))
    return math.fsum(total)


def _amplified(
    mechanisms: list[Mechanism], rule: SamplingRule, event: events.Event
) -> list[Mechanism]:
    """Returns what the mechanisms, all about the one sample, cost together."""
    kinds = {type(mechanism) for mechanism in mechanisms}
    if rule.amplification is not None and kinds & set(UNAMPLIFIED):
        # Beside one that is not amplified nothing is: all are about the same sample.
        return [within_range(as_a_whole(each, rule.amplification)) for each in mechanisms]
    if len(mechanisms) == 1:
        together = mechanisms
    elif kinds <= {SampledLaplace, BoundedRange, PureEpsilon}:
        epsilon = sum(map(pure_epsilon, mechanisms))
        # Laplace noise on several sums is Laplace noise on one vector, whose l1 norms add up.
        laplace = kinds == {SampledLaplace}
        together = [SampledLaplace(1.0, 1 / epsilon) if laplace else PureEpsilon(epsilon)]
    else:
        names = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise UnsupportedEventError(
            f"{names} about one sample are not supported together: {event!r}. "
            "Draw a sample for each."
        )
    if rule.amplification is None:
        return together
    return [amplify(rule, each, event) for each in together]


def normal_form(event: events.Event, group_size: int = 1) -> NormalForm:
    """Returns the mechanisms that `event` amounts to.

    Args:
        event: The event.
        group_size: How many neighbours the data sets are apart; the mechanisms are those of each
            two of them on the way (`tfdp.accounting.sampling_rules`).

    Raises:
        UnsupportedEventError: the event, or one inside it, cannot be priced; the message names it.
    """
    if isinstance(event, SelectedRun):
        return NormalForm(
            best_of_runs(event, functools.partial(collapse_all, group_size=group_size))
        )
    rule = sampling_rule(event, group_size)
    form = _form(event, rule)
    if rule.otherwise is None or form.failure_probability >= 1:
        return form
    return form._replace(otherwise=_form(event, rule.otherwise))


def _form(event: events.Event, rule: SamplingRule) -> NormalForm:
    sampled = isinstance(event, events.SampledEvent)
    leaves = _leaves(event.event if isinstance(event, events.SampledEvent) else event)
    relation = protection(event).neighboring_relation
    run = None
    if any(map(is_correlated, leaves)):
        multipliers, run = run_of(leaves, rule, event, _GAUSSIANS)
        mechanisms = _of_leaves(leaves, multipliers, rule.factors, relation)
        if run.is_pass or rule.drawn_once is not None:
            slot = None if rule.drawn_once is None else event.step_of_run()
            rule = SamplingRule(
                rule.factors,
                drawn_together=rule.drawn_together,
                drawn_once=rule.drawn_once,
                slot=slot,
            )
        if run.amplified is not None and NoPrivacy() not in mechanisms:
            mechanisms = [within_range(run.amplified)]
    else:
        mechanisms = _mechanisms(leaves, rule.factors, relation)
    amplifies = mechanisms and sampled and rule.amplification is not None
    if amplifies and NoPrivacy() not in mechanisms:
        mechanisms = _amplified(without_parts(mechanisms), rule, event)
    if NoPrivacy() in mechanisms:
        mechanisms = [NoPrivacy()]
    failure, lost = _failure(leaves), _lost(leaves, rule.factors, relation)
    truncated = [each for each in mechanisms if isinstance(each, TruncatedGaussian)]
    if truncated and len(truncated) == len(mechanisms):
        # Where a sample is full, another unit is driven out: two neighbours in a row.
        share = max(each.overflow_probability for each in truncated)
        lost += share * (_lost(leaves, (2.0,), relation) - lost)
    else:
        failure += rule.failure_probability
    together: Hashable = None
    repetitions = 1
    if isinstance(event, events.SampledEvent) and NoPrivacy() not in mechanisms:
        repetitions = rule.repetitions
        together = rule.drawn_once
        in_passes = run is None and rule.events_per_mechanism > 1
        if rule.drawn_together or (together is None and in_passes):
            together = (event.sampling, relation, event.privacy_unit)
    return NormalForm(
        tuple(mechanisms),
        rule.events_per_mechanism,
        min(1.0, failure),
        lost,
        run,
        together,
        repetitions,
        rule.slot if together is not None else None,
    )


def collapse_all(
    entries: Iterable[tuple[events.Event, int]], group_size: int = 1
) -> Iterator[tuple[Mechanism, int]]:
    """Yields the mechanisms that all of a ledger, or of a run, amounts to, each with its number.

    Args:
        entries: Every event, once, and how often it happened.
        group_size: As in `normal_form`.

    Raises:
        UnsupportedEventError: as `collapse`.
    """
    entries = list(entries)
    steps: collections.Counter[Any] = collections.Counter()
    for event, count in entries:
        steps[getattr(event, "sampling", event)] += count
    for event, count in entries:
        yield from collapse(event, count, group_size, steps[getattr(event, "sampling", event)])


def collapse(
    event: events.Event, count: int, group_size: int = 1, steps: int | None = None
) -> list[tuple[Mechanism, int]]:
    """Returns the mechanisms that `count` such events amount to, each with its number.

    Args:
        event: Of a step, or of any other release.
        count: The total over a whole ledger: begun passes over shuffled data are rounded up once.
        group_size: As in `normal_form`.
        steps: How many there are of the pass, with those that are other events; by default these
            are all.

    Raises:
        UnsupportedEventError: the event, or one inside it, cannot be priced, or mechanisms are not
            all that it costs; the message names it.
    """
    form = normal_form(event, group_size)
    form = form.otherwise or form
    if form.run is not None:
        raise UnsupportedEventError(
            "Mechanisms of a single step do not say what it costs: the steps of its run cost "
            f"together what tfdp's own accountants say. Received: {event!r:.500}."
        )
    if form.failure_probability > 0 or form.lost_probability > 0:
        raise UnsupportedEventError(
            "Mechanisms alone do not say with which probability a step fails (a sample is larger "
            "than what is kept of it, discrete noise differs from Gaussian noise, or the release "
            f"has a delta of its own): {event!r}."
        )
    # Of more steps than a pass has, a unit may have been in the dearest of each pass.
    passes = -(-(count if steps is None else steps) // form.events_per_mechanism)
    number = min(count, passes)
    mechanisms = without_parts(form.mechanisms)
    if form.drawn_together is None:
        return [(mechanism, number * form.times(mechanism)) for mechanism in mechanisms]
    # Other steps of the same pass may be other events.
    return [(known_step(mechanism), number * form.times(mechanism)) for mechanism in mechanisms]


def effective_noise_multiplier(event: events.Event) -> float:
    """Returns z of all Gaussian sums that `event` releases about one sample.

    It is infinity where the event releases nothing, and zero where it has no privacy.

    Raises:
        UnsupportedEventError: the event, or one inside it, cannot be priced, or is no Gaussian sum.
    """
    leaves = _leaves(event.event if isinstance(event, events.SampledEvent) else event)
    multipliers = []
    for leaf in leaves:
        if type(leaf) is events.NonPrivateEvent:
            multipliers.append(0.0)
        elif isinstance(leaf, _GAUSSIANS):
            multipliers.append(leaf.noise_multiplier)
        else:
            raise UnsupportedEventError(
                f"A {type(leaf).__name__} has no noise multiplier of a Gaussian: {leaf!r}."
            )
    return _multiplier(multipliers, sampling_rule(event).factors)
