"""A search among candidates whose runs are private, that tells the winner only."""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfdp.events import Event, RunEvent
from tfdp.events.arguments import check_type
from tfdp.ledger import PrivacyLedger
from tfdp.noise import HostGenerator
from tfdp.tuning.stopping import NumberOfRuns

Plan = Iterable[tuple[Event, int]]


@dataclasses.dataclass(frozen=True)
class BestRun:
    """What a search releases.

    Attributes:
        candidate: The winner.
        score: Its score.
        output: Its output.
    """

    candidate: Any
    score: float
    output: Any


def private_search(
    run: Callable[[Any, PrivacyLedger], tuple[float, Any]],
    candidates: Sequence[Any] | Callable[[], Any],
    plan: Plan | Callable[[Any], Plan],
    number_of_runs: NumberOfRuns,
    *,
    ledger: PrivacyLedger,
    generator: HostGenerator | None = None,
) -> BestRun | None:
    """Runs randomly drawn candidates and returns the one with the largest score.

    A search that shows all of its runs costs all of them. This one shows the best run, and keeps
    secret how many there were: then the whole search costs two to three times one run, whatever
    their number is on average.

    Guarantees:
        `ledger` holds the event of the search before the first run begins. A run that writes to its
        ledger what its plan does not hold ends the search with an error.

    Edge cases:
        An error in a run, or of one that left its plan, tells of this run. So `ledger` then gets,
        beside the search, the plan of the run and what it did beyond it. A score of NaN counts as
        the smallest. With `PoissonRuns` there may be no run.

    What is not checked: that `run` shows what it sees by its score and its output only (no prints,
    files or callbacks), and that both are as private as its ledger says. A score on the private
    data themselves has to be noised, and its event is part of the plan. A score on public data
    costs nothing. Whoever can tell how many runs there were, by a clock or a progress bar for
    example, knows more than the event says. So the search itself shows no progress. The ledger of a
    model that won is that of its run.

    Args:
        run: A function of a candidate and of an empty ledger, to which it writes what it does. It
            returns (score, output).
        candidates: The candidates, of which each is as likely as any other, or a function that
            draws one, without looking at data or at earlier runs (`optuna_trials`,
            `keras_tuner_values`).
        plan: What a run costs: the (event, count) pairs of a ledger, or a function of a candidate.
            With a function that draws candidates it is one plan that covers all of them. A
            rehearsal on made-up data gives one: the pairs that stand in its ledger.
        number_of_runs: A distribution, `TruncatedNegativeBinomialRuns` or `PoissonRuns`.
        ledger: What the search is charged to.
        generator: Draws the number of runs and the candidates; by default from secret bits.

    Returns:
        The winner, or None if there was no run.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there are no candidates, a plan is empty, or a run did more than its plan says.
        Exception: what a run raises.

    Example:
        >>> import tfdp
        >>> from tfdp.events import GaussianSumEvent
        >>> step = GaussianSumEvent(1.0, noise_stddev=10.0)
        >>> def run(rate, ledger):
        ...     ledger.append(step, count=5)
        ...     return -abs(rate - 0.1), f"a model trained with {rate}"
        >>> ledger = PrivacyLedger()
        >>> numbers = tfdp.tuning.TruncatedNegativeBinomialRuns(0.1)
        >>> best = private_search(run, [0.01, 0.1, 1.0], [(step, 5)], numbers, ledger=ledger)
        >>> best.candidate in (0.01, 0.1, 1.0)
        True
        >>> [f"{ledger.epsilon(1e-5, accountant='rdp'):.2f}", ledger.total_count]
        ['1.92', 1]

    References:
        Liu and Talwar 2019, arXiv:1811.07971; Papernot and Steinke 2022, arXiv:2110.03620.
    """
    check_type("number_of_runs", number_of_runs, NumberOfRuns)
    check_type("ledger", ledger, PrivacyLedger)
    generator = HostGenerator() if generator is None else generator
    draw = _drawing(candidates, generator)
    if callable(plan):
        if callable(candidates):
            raise TypeError(
                "plan must be one for all candidates where a function draws them: it is charged "
                "before the first is drawn."
            )
        plans = [_plan(plan(candidate)) for candidate in candidates]
        plan_of = dict(enumerate(plans)).__getitem__
    else:
        plans = [_plan(plan)]
        plan_of = lambda index: plans[0]  # noqa: E731
    ledger.append(number_of_runs.event(tuple(dict.fromkeys(plans))))
    best: BestRun | None = None
    for _ in range(number_of_runs.draw(generator)):
        index, candidate = draw()
        score, output = _run(run, candidate, plan_of(index), ledger)
        if best is None or score > best.score:
            best = BestRun(candidate, score, output)
    return best


def _drawing(candidates: Any, generator: HostGenerator) -> Callable[[], tuple[int, Any]]:
    if callable(candidates):
        return lambda: (0, candidates())
    if not isinstance(candidates, Sequence) or isinstance(candidates, str):
        raise TypeError(
            "candidates must be a list, or a function that draws one. Received: "
            f"{type(candidates).__name__}."
        )
    if not candidates:
        raise ValueError("candidates must hold at least one. Received: none.")

    def draw() -> tuple[int, Any]:
        index = int(generator.integers(len(candidates), size=1)[0])
        return index, candidates[index]

    return draw


def _plan(pairs: Plan) -> RunEvent:
    counts = _counts(pairs)
    return RunEvent(tuple(counts), tuple(counts.values()))


def _run(
    run: Callable[[Any, PrivacyLedger], tuple[float, Any]],
    candidate: Any,
    plan: RunEvent,
    ledger: PrivacyLedger,
) -> tuple[float, Any]:
    """Returns (score, output) of one run that kept to its plan."""
    own, planned = PrivacyLedger(), dict(zip(plan.events, plan.counts, strict=True))
    kept = False
    try:
        score, output = run(candidate, own)
        score = float(score)
        for event, count in _counts(own).items():
            if count > planned.get(event, 0):
                raise ValueError(
                    f"A run did {count} x {event!r}, of which its plan holds "
                    f"{planned.get(event, 0)}. The search is over and its winner not released. "
                    "Plan all that a run writes to the ledger that it is given."
                )
        kept = True
    finally:
        if not kept:
            for event, count in (_counts(own) | collections.Counter(planned)).items():
                ledger.append(event, count=count)
    return (-math.inf if math.isnan(score) else score), output


def _counts(pairs: Plan) -> collections.Counter[Event]:
    counts: collections.Counter[Event] = collections.Counter()
    for event, count in pairs:
        counts[event] += count
    return counts
