"""A search among candidates whose runs are private, that tells the winner only."""

import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfdp.events import Event, RunEvent
from tfdp.events.arguments import check_type
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.entry import PassNumbers
from tfdp.ledger.errors import PassTakenError
from tfdp.noise import HostGenerator
from tfdp.tuning.stopping import NumberOfRuns

Plan = Iterable[tuple[Event, int]]


@dataclasses.dataclass(frozen=True)
class BestRun:
    """What a search releases.

    Attributes:
        candidate: The winner.
        score: Its score.
        output: Its output. The ledgers in it hold the run, and the event of the search after it.
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

        Whoever goes on from the winner goes on from a search, not from one run. So the winner's own
        ledger gets the event of the search, too, and so does any other that its output has: the
        `ledger` of a model for example, also in lists, tuples and dictionaries. Such a ledger
        charges for the run twice, which is too much and never too little.

    Edge cases:
        An error in a run, or of one that left its plan, tells of this run. So `ledger` then gets,
        beside the search, the plan of the run and what it did beyond it, in passes that no other
        step is of. A score of NaN counts as the smallest. With `PoissonRuns` there may be no run.

    What is not checked: that `run` shows what it sees by its score and its output only (no prints,
    files or callbacks), and that both are as private as its ledger says. A score on the private
    data themselves has to be noised, and its event is part of the plan. A score on public data
    costs nothing. Whoever can tell how many runs there were, by a clock or a progress bar for
    example, knows more than the event says. So the search itself shows no progress. That holds for
    the place of the winner among them, too: neither its candidate nor its output may carry it.
    Keras numbers the models and layers of a process that are given no names, and a winner called
    "sequential_7" was the seventh; begin a run with `keras.utils.clear_session()`. What a run
    saves before it returns has a ledger that does not hold the search; save the winner instead.

    Args:
        run: A function of a candidate and of an empty ledger, to which it writes what it does: that
            of its model's optimizer, or `model.ledger`. It returns (score, output).
        candidates: The candidates, of which each is as likely as any other, or a function that
            draws one, without looking at data or at earlier runs (`optuna_trials`,
            `keras_tuner_values`). The winner is shown, so a candidate must not carry its place in
            the sequence: no number, no time, no value that only the tenth draw can have, as of a
            counter or of a generator with a known seed.
        plan: What a run costs: the (event, count) pairs of a ledger, or a function of a candidate.
            With a function that draws candidates it is one plan that covers all of them. A
            rehearsal on made-up data gives one: the pairs that stand in its ledger.
        number_of_runs: A distribution, `TruncatedNegativeBinomialRuns` or `PoissonRuns`.
        ledger: What the search is charged to.
        generator: Draws the number of runs and the candidates, from bits that the operating system
            keys. Draws that can be repeated are not secret, and refused.

    Returns:
        The winner, or None if there was no run.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there are no candidates, a plan is empty, the generator is not secret, or a run
            did more than its plan says.
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
    _check_secret(generator)
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
    event = number_of_runs.event(tuple(dict.fromkeys(plans)))
    ledger.append(event)
    best: BestRun | None = None
    winner: list[PrivacyLedger] = []
    for _ in range(number_of_runs.draw(generator)):
        index, candidate = draw()
        own = PrivacyLedger()
        score, output = _run(run, candidate, own, plan_of(index), ledger)
        if best is None or score > best.score:
            best, winner = BestRun(candidate, score, output), [own]
    if best is not None:
        _charge_winner(event, [*winner, *_ledgers_in(best.output)], ledger)
    return best


def _check_secret(generator: Any) -> None:
    check_type("generator", generator, HostGenerator)
    if not generator.is_secret:
        raise ValueError(
            "generator must be a HostGenerator() that the operating system keys: the cost of a "
            "search supposes that nobody can know how many runs there were. Leave `generator` out. "
            "Received: a HostGenerator with a fill of its own."
        )


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
    own: PrivacyLedger,
    plan: RunEvent,
    ledger: PrivacyLedger,
) -> tuple[float, Any]:
    """Returns (score, output) of one run that kept to its plan."""
    planned = dict(zip(plan.events, plan.counts, strict=True))
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
            _charge_run(_counts(own) | collections.Counter(planned), ledger)
    return (-math.inf if math.isnan(score) else score), output


def _charge_run(counts: Mapping[Event, int], ledger: PrivacyLedger) -> None:
    """Writes the steps of a run, whose ledger counted its passes from zero, in new passes."""
    pending = list(counts.items())
    with ledger.appending():
        numbers = PassNumbers(ledger.next_pass)
        while pending:
            event, count = pending[0]
            try:
                ledger.append(numbers.renumbered(event), count=count)
                del pending[0]
            except PassTakenError:
                # Another process took this number. The ledger has read that by now. A pass that is
                # cut in two costs more, never less.
                numbers = PassNumbers(ledger.next_pass)


def _charge_winner(event: Event, ledgers: Iterable[PrivacyLedger], paid: PrivacyLedger) -> None:
    """Writes the event of the search, once, to each of the ledgers but the one that has it."""
    for each in {id(each): each for each in ledgers if each is not paid}.values():
        each.append(event)


def _ledgers_in(output: Any) -> Iterator[PrivacyLedger]:
    """Yields the ledgers that an output has."""
    pending, seen = [output], set()
    while pending:
        part = pending.pop()
        if isinstance(part, (list, tuple, Mapping)):
            if id(part) not in seen:  # It may hold itself.
                seen.add(id(part))
                pending.extend(part.values() if isinstance(part, Mapping) else part)
            continue
        found = part
        if not isinstance(part, PrivacyLedger):
            found = None
            with contextlib.suppress(ValueError):  # A private model that was never compiled.
                found = getattr(part, "ledger", None)
        if isinstance(found, PrivacyLedger):
            yield found


def _counts(pairs: Plan) -> collections.Counter[Event]:
    counts: collections.Counter[Event] = collections.Counter()
    for event, count in pairs:
        counts[event] += count
    return counts
