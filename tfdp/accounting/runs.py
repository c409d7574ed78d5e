"""The best of a random number of runs, as a mechanism."""

import collections
import math
from collections.abc import Callable, Iterable

from tfdp.accounting.mechanisms import (
    DEARER,
    BestOfPoissonRuns,
    BestOfPureRuns,
    BestOfRuns,
    Mechanism,
    NoPrivacy,
    PureEpsilon,
    Run,
)
from tfdp.accounting.ranges import within_range
from tfdp.events import Event, PoissonSelectedRunEvent, UnsupportedEventError
from tfdp.events.runs import SelectedRun, SelectedRunEvent

_Collapse = Callable[[Iterable[tuple[Event, int]]], Iterable[tuple[Mechanism, int]]]


def _pure_epsilon(run: Run) -> float:
    """Returns the epsilon of a run, infinity where it is not pure."""
    total = 0.0
    for mechanism, count in run:
        while type(mechanism) in DEARER:
            mechanism = DEARER[type(mechanism)](mechanism)
        total += count * mechanism.epsilon if isinstance(mechanism, PureEpsilon) else math.inf
    return total


def best_of_runs(event: SelectedRun, collapse: _Collapse) -> tuple[Mechanism, ...]:
    """Returns what a selection of a run amounts to.

    Args:
        event: The selection.
        collapse: From the steps of a run, and how often each was done, to mechanisms.

    Raises:
        UnsupportedEventError: a step cannot be priced, or not as mechanisms alone.
    """
    runs: list[Run] = []
    for run in event.runs:
        terms: collections.Counter[Mechanism] = collections.Counter()
        steps: collections.Counter[Event] = collections.Counter()
        for step, count in zip(run.events, run.counts, strict=True):
            steps[step] += count
        for mechanism, number in collapse(steps.items()):
            terms[mechanism] += number
        if any(type(mechanism) is NoPrivacy for mechanism in terms):
            return (NoPrivacy(),)
        # What releases nothing is not dearer than anything.
        if terms:
            runs.append(tuple(sorted(terms.items(), key=repr)))
    if not runs:
        return ()
    if isinstance(event, PoissonSelectedRunEvent):
        return (BestOfPoissonRuns(tuple(runs), event.mean_runs),)
    if not isinstance(event, SelectedRunEvent):
        raise UnsupportedEventError(f"{type(event).__name__} is not supported: {event!r}.")
    best = BestOfRuns(tuple(runs), event.shape, event.success_probability)
    epsilon = max(map(_pure_epsilon, runs))
    return (best if epsilon == math.inf else within_range(BestOfPureRuns(best, epsilon)),)
