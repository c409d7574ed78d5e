"""What a run of sums with correlated noise costs, and what it costs where steps were repeated.

The releases of a run are a function of C g + sigma z: a Gaussian mechanism, whose sensitivity
follows from the steps that a unit may be in.

- *In a fixed order*, and where a unit may be in every step (period 1), it is S times the
  sensitivity that `tfdp.factorizations` has. The run is one Gaussian. Stopped early it is a part of
  that vector, and costs no more. Rows of a binary tree are its nodes, released as they end.
- *Groups in turn, Poisson.* With no more bands than groups, the columns of two turns of a group
  have no row in common. So the run is one sampled Gaussian for each of ceil(n / groups) turns, with
  S times the norm of a column (Choquette-Choo et al. 2023, arXiv:2306.08153, theorem 4).

- *Balls in bins.* A unit is in every step of its bin's turn, as in a fixed order, but nobody knows
  its bin. So the run is a `BinnedGaussian`, whatever the bands. Of noise that is charged as if a
  unit were in every step (period 1) bins amplify nothing.
- *Samples in which a unit's steps are b apart.* With no more bands than b, the run is a
  `SeparatedGaussian` where it is one pass of such samples. A pass that was left cannot be taken up
  again, because nobody knows who waits; steps of a run in two passes have no known price.

A step that was taken m times, from copies of one state, released m values with fresh z each. Let m
be the most of all steps. In a fixed order, and in bins, all of them are the rows of C g, each at
most m times with independent noise. So the squared sensitivity is at most m times as large, which m
runs cost.
That is so row by row: the bound of absolute values holds for every row by itself, whatever copies
the sums in it come from. So it does not matter which copy went on and which one ended. Of random
samples, each of the m draws of a turn is in rows that were released at most m times: m draws, each
of them with sqrt(m) times the sensitivity. A pass of separated samples with such a step is refused.
"""

import functools
import math
from typing import Any, NamedTuple

from tfdp import events
from tfdp.accounting.amplification import ALLOCATION_REPLACE
from tfdp.accounting.mechanisms import (
    DEARER,
    AllocatedGaussian,
    BinnedGaussian,
    Mechanism,
    RemoveThenAdd,
    SampledGaussian,
    SeparatedGaussian,
)
from tfdp.accounting.ranges import LARGEST_MULTIPLIER, within_range
from tfdp.accounting.sampling_rules import SamplingRule
from tfdp.events import NeighboringRelation, UnsupportedEventError
from tfdp.events.protection import protection
from tfdp.factorizations import BinaryTree, ToeplitzFactorization


class Run(NamedTuple):
    """A run that an event is a step of.

    Attributes:
        start: Its first step, which all steps of the run have in common.
        ids: The numbers that name it.
        times: How often the mechanisms of a step stand for the whole run.
        sampled: Whether samples are drawn at random, and each by itself.
        is_pass: Whether the samples of the run are those of one pass.
        amplified: What a run is, all of it, where sampling amplifies it together.
    """

    start: events.Event
    ids: tuple[int, ...]
    times: int
    sampled: bool
    is_pass: bool = False
    amplified: Mechanism | None = None

    def check(self, known: dict[int, events.Event]) -> None:
        """Refuses a run that changed on its way: its participations are then not those declared.

        Args:
            known: Number of a run -> its first step.

        Raises:
            UnsupportedEventError: a run of this number is another one.
        """
        for number in self.ids:
            before = known.get(number, self.start)
            if before != self.start:
                raise UnsupportedEventError(
                    f"The steps of run {number} differ in more than their position: batches, "
                    "relation or noise were changed within the run, and its price is not known. "
                    f"Received: {self.start!r:.500} after {before!r:.500}."
                )


def is_correlated(event: events.Event) -> bool:
    """Whether the event is a step of a run."""
    return isinstance(event, (events.CorrelatedGaussianSumEvent, events.TreeGaussianSumEvent))


def _factorization(leaf: Any) -> ToeplitzFactorization | BinaryTree:
    """Returns how the noise of a leaf is correlated over the steps of a run."""
    if isinstance(leaf, events.TreeGaussianSumEvent):
        return BinaryTree(leaf.efficient)
    if isinstance(leaf, events.CorrelatedGaussianSumEvent):
        return ToeplitzFactorization(leaf.numerator, leaf.denominator)
    return ToeplitzFactorization()


# Every step of a run asks the same, for a vector with an element for each step.
@functools.lru_cache(maxsize=64)
def _sensitivity(
    factorization: ToeplitzFactorization | BinaryTree, num_steps: int, period: int | None
) -> float:
    if period is None:
        return factorization.column_norm(num_steps)
    return factorization.sensitivity(num_steps, period)


def run_of(
    leaves: list[events.Event],
    rule: SamplingRule,
    event: events.Event,
    gaussians: tuple[type, ...],
) -> tuple[list[float], Run]:
    """Returns the noise multipliers of a whole run, one for each release, and the run.

    Args:
        leaves: What is released about the sample of a step, at least one of them correlated.
        rule: How the sample is priced.
        event: Of which these are the leaves.
        gaussians: Classes of Gaussian sums whose noise is independent from step to step.

    Raises:
        UnsupportedEventError: the releases are not known to be one mechanism together.
    """
    correlated: list[Any] = [leaf for leaf in leaves if is_correlated(leaf)]
    first, start = correlated[0], event.run_start()
    places = {(leaf.num_steps, leaf.period, leaf.position) for leaf in correlated}
    others = [leaf for leaf in leaves if not isinstance(leaf, gaussians) and leaf.protects]
    others = [leaf for leaf in others if not is_correlated(leaf)]
    separation = event.sampling.separation if isinstance(event, events.SampledEvent) else None
    passes = rule.events_per_mechanism != 1 and separation is None
    if len(places) > 1 or others or passes or len(rule.factors) != 1:
        raise UnsupportedEventError(
            "Releases beside correlated noise must be Gaussian sums, and where their noise is "
            "correlated too, the same step of equally long runs, on samples in a fixed order. "
            f"Received: {event!r:.500}."
        )
    n = first.num_steps
    # Of a bare event nobody says in which steps its unit is: in all of them. A unit that is added
    # moves all behind it, so that neighbours differ in all steps, too.
    binned = rule.drawn_once is not None
    adds = protection(event).neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    moves = adds and not binned
    period = 1 if moves or not isinstance(event, events.SampledEvent) else first.period
    sampled = rule.amplification is not None and not binned
    first_step, ids = start or event, event.run_ids()
    if separation is not None:
        separated = _separated(leaves, rule)
        z = 0.0 if separated is None else 1 / separated.sensitivity
        return [z], Run(first_step, ids, 1, False, True, separated if sampled else None)
    multipliers = []
    for leaf in leaves:
        if not leaf.protects:
            continue
        factorization = _factorization(leaf)
        bands = leaf.bands if is_correlated(leaf) else 1  # type: ignore[attr-defined]
        if sampled and (bands is None or bands > period):
            raise UnsupportedEventError(
                "Sampling is not known to amplify noise that remembers more steps than there are "
                f"between two participations. Received: {event!r:.500}."
            )
        try:
            sensitivity = _sensitivity(factorization, n, None if sampled else period)
        except ValueError as error:  # Coefficients of a ledger that grow without bound.
            raise UnsupportedEventError(f"{error} Received: {event!r:.500}.") from error
        multipliers.append(leaf.noise_multiplier / sensitivity)  # type: ignore[attr-defined]
    if binned:
        in_turns = rule.parameters == (first.period,)
        amplified = _binned(leaves, rule) if in_turns and all(multipliers) else None
        # Of two neighbours in a row, one after the other; known bins are moved twice as far.
        twice = 2 if rule.amplification is ALLOCATION_REPLACE else 1
        run = Run(first_step, ids, 1, False, amplified=amplified)
        return [z / twice for z in multipliers], run
    times = -(-n // period) if sampled else 1
    return multipliers, Run(first_step, ids, times, sampled)


def _binned(leaves: list[Any], rule: SamplingRule) -> Mechanism | None:
    """Returns what a run is whose units are in bins, under a relation that the rule is for; None
    where that is no less than if bins were known.
    """
    (b,) = rule.parameters
    first = next(leaf for leaf in leaves if is_correlated(leaf))
    noised = [leaf for leaf in leaves if leaf.protects]
    releases = [
        (_factorization(leaf), min(leaf.noise_multiplier, LARGEST_MULTIPLIER)) for leaf in noised
    ]
    mechanism = BinnedGaussian(b, first.num_steps, tuple(sorted(releases, key=repr)))
    found = within_range(mechanism)
    if rule.amplification is not ALLOCATION_REPLACE:
        return found
    once = DEARER[BinnedGaussian](found) if isinstance(found, BinnedGaussian) else found
    return RemoveThenAdd(once) if isinstance(once, AllocatedGaussian) else None


def _separated(leaves: list[Any], rule: SamplingRule) -> SeparatedGaussian | None:
    """Returns what a run is that is one pass of separated samples; None where a sum has no noise.

    A column of absolute values costs at least as much as the column (`SeparatedGaussian`).
    """
    p, separation, n = rule.parameters
    columns = []
    for leaf in leaves:
        if not leaf.protects:
            continue
        if not leaf.noise_multiplier:
            return None
        bands = leaf.numerator[:n] if is_correlated(leaf) else (1.0,)
        z = min(leaf.noise_multiplier, LARGEST_MULTIPLIER)
        columns.append(tuple(abs(x) / z for x in bands))
    return SeparatedGaussian(p, separation, n, tuple(sorted(columns)))


def repeated(mechanism: Mechanism, run: Any, most: int) -> tuple[Mechanism, int]:
    """Returns what a run is whose steps were taken up to `most` times, and how often it counts."""
    number = run.times * most
    if most == 1:
        return mechanism, number
    if run.is_pass:
        raise UnsupportedEventError(
            f"A step of a run was taken {most} times on samples of one pass. Who has to wait is "
            "not known after a pass was left, so what such a run costs is not known either. "
            "Received: a run of MinSeparationSampling."
        )
    if isinstance(mechanism, RemoveThenAdd):
        once, _ = repeated(mechanism.mechanism, run, most)
        same = isinstance(once, SampledGaussian)
        return (RemoveThenAdd(once) if same else once), number  # type: ignore[arg-type]
    if isinstance(mechanism, SampledGaussian) and mechanism.sampling_probability < 1:
        z = mechanism.noise_multiplier / math.sqrt(most)
        return within_range(SampledGaussian(mechanism.sampling_probability, z)), number
    return mechanism, number
