"""What every accountant says that a ledger costs, or why it says nothing."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.normal_form import normal_form
from tfdp.accounting.registry import ACCOUNTANTS, confidence_of, make_accountant
from tfdp.accounting.totals import Totals
from tfdp.events import Event, NeighboringRelation, UnsupportedEventError
from tfdp.events.registry import is_ours
from tfdp.ledger import PrivacyLedger
from tfdp.report.numbers import exact
from tfdp.report.tradeoff import POINTS, Profile, make_profile

# Beside the target delta.
_DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
# Evenly spaced points of the curve over steps.
_CURVE_POINTS = 16
# Curves and attacks are shown for the smallest upper bound. Beside it they are shown for this
# accountant, whose number has a proof that can be checked by hand. But if that number is larger by
# this factor, its curve would press the other one to the ground.
_BESIDE = "rdp"
_LARGEST_SHOWN = 2.5
# Accountants are given at most so many kinds of steps, unless they say that they take many. Steps
# are charged a little more, so that no more kinds remain. Where that does not help, these
# accountants are not asked: nobody should have to wait minutes to read a report.
_MOST_KINDS = 12
# Profiles of more kinds than this have fewer points, so that each is a little further above the
# truth; likewise curves over steps.
_FEW_KINDS, _FEWER_POINTS, _FEWER_CURVE_POINTS = 4, 16, 6
# Characters of a reason for a refusal; other accountants' may hold all of a ledger.
_LONGEST_REASON = 400


@dataclasses.dataclass(frozen=True, eq=False)
class Cost:
    """What one accountant says.

    Attributes:
        name: Its name in `tfdp.accounting.ACCOUNTANTS`.
        kind: What its number is.
        is_upper_bound: Whether the report may rely on it, which every accountant of tfdp promises.
        refusal: Why it gives no number; None where it does.
        epsilons: One for every delta of the report; empty where it refuses.
        curve: Epsilon after each of `Costs.steps`; None where it is not shown.
        profile: Its delta(epsilon); None where it is not shown.
        confidence: With which probability all of these are upper bounds; None where it is proven.
        rounded: Whether steps were charged a little more, so that fewer kinds of them remained.
    """

    name: str
    kind: str
    is_upper_bound: bool
    refusal: str | None
    epsilons: tuple[float, ...]
    curve: tuple[float, ...] | None = None
    profile: Profile | None = None
    confidence: float | None = None
    rounded: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Costs:
    """What the accountants say.

    Attributes:
        deltas: In falling order.
        target: Position of the target delta in `deltas`.
        steps: Numbers of steps at which curves were computed.
        costs: One for every accountant that was asked.
        headline: The smallest upper bound at the target delta; None where no accountant that gives
            one accepts the ledger.
    """

    deltas: tuple[float, ...]
    target: int
    steps: tuple[int, ...]
    costs: tuple[Cost, ...]
    headline: Cost | None

    @property
    def target_delta(self) -> float:
        """The delta of the headline."""
        return self.deltas[self.target]

    @property
    def epsilon(self) -> float:
        """The headline's epsilon at the target delta; infinite where there is no headline."""
        return math.inf if self.headline is None else self.headline.epsilons[self.target]


def refusals() -> tuple[type[Exception], ...]:
    """Returns what accountants raise where they cannot or will not give a number."""
    own = (ValueError, ArithmeticError, NotImplementedError, ModuleNotFoundError)
    dp_accounting = sys.modules.get("dp_accounting")
    return own if dp_accounting is None else (*own, dp_accounting.UnsupportedEventError)


def _number(name: str, get_epsilon: Callable[[float], Any], delta: float) -> float:
    epsilon = float(get_epsilon(delta))
    if math.isnan(epsilon) or epsilon < 0:
        raise ArithmeticError(f"{name} returned {epsilon} at delta = {exact(delta)}.")
    return epsilon


def _is_ours(accountant: Any) -> bool:
    return isinstance(accountant, Accountant) and is_ours(type(accountant))


def _takes_many_kinds(accountant: Any) -> bool:
    return isinstance(accountant, Accountant) and accountant.takes_many_kinds


def _is_quick(name: str) -> bool:
    try:
        return _takes_many_kinds(make_accountant(name))
    except refusals():
        return False  # It says so itself when it is asked.


def _is_proven(name: str) -> bool:
    try:
        return confidence_of(make_accountant(name)) is None
    except refusals():
        return True


def _kind(accountant: Any) -> str:
    kind = type(accountant)
    if _is_ours(accountant):
        return f"Upper bound. {(kind.__doc__ or kind.__name__).strip().splitlines()[0]}"
    return f"For comparison, computed by {kind.__module__.split('.')[0]}."


def _reason(error: Exception, ledger: PrivacyLedger) -> str:
    """Returns why an accountant refuses, without the event as Python writes it.

    The report shows what the events hold already.
    """
    text = str(error)
    for event, _ in ledger:
        written = repr(event)
        if written in text:
            text = text.replace(f": {written}", "").replace(written, "an event of the ledger")
            break
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def coarse_ledger(ledger: PrivacyLedger) -> tuple[PrivacyLedger | None, int, str]:
    """Returns a ledger of few kinds of steps that costs at least as much, how many kinds there are,
    and what to say of it. The ledger is None where there is none.
    """
    totals = Totals(_MOST_KINDS)
    for event, count in ledger:
        totals.add(event, count)
    kinds = len({kind for event, _ in totals for kind in _mechanisms(event)})
    if kinds > _MOST_KINDS:
        return None, kinds, f"Not asked: the ledger holds more than {_MOST_KINDS} kinds of steps."
    if totals.digits is None:
        return ledger, kinds, ""
    coarse = PrivacyLedger()
    for event, count in ledger:
        coarse.append(totals.charged_as(event), count)
    note = f"Many kinds of steps: charged with {totals.digits} digits, rounded towards more cost."
    return coarse, kinds, note


def _mechanisms(event: Event) -> tuple[Any, ...]:
    """Returns what an accountant would price one by one; an event that has no price is itself."""
    try:
        return normal_form(event).mechanisms
    except UnsupportedEventError:
        return (event,)


def _cost(
    ledger: PrivacyLedger | None,
    name: str,
    relation: NeighboringRelation,
    deltas: Sequence[float],
    note: str,
) -> tuple[Cost, Any]:
    """Returns what an accountant says, and the accountant, or None where it says nothing."""
    accountant, kind, upper, rounded = None, "Not available.", False, False
    if ledger is None:
        return Cost(name, kind, upper, note, ()), None
    try:
        accountant = make_accountant(name, relation)
        kind, upper = _kind(accountant), _is_ours(accountant)
        if note and not _takes_many_kinds(accountant):
            kind, rounded = f"{kind} {note}", True
        ledger.replay(accountant)
        epsilons = tuple(_number(name, accountant.get_epsilon, delta) for delta in deltas)
    except refusals() as error:
        text = _reason(error, ledger)
        return Cost(name, kind, upper, text, ()), None
    confidence = confidence_of(accountant)
    found = Cost(name, kind, upper, None, epsilons, confidence=confidence, rounded=rounded)
    return found, accountant


def _curve(
    ledger: PrivacyLedger,
    name: str,
    relation: NeighboringRelation,
    steps: Sequence[int],
    delta: float,
) -> tuple[float, ...]:
    """Returns epsilon after each number of steps, which rise."""
    accountant, done, found = make_accountant(name, relation), 0, []
    wanted = iter(steps)
    target = next(wanted)
    for event, count in ledger:
        while count:
            taken = min(count, target - done)
            accountant.compose(event, taken)
            done, count = done + taken, count - taken
            if done == target:
                found.append(float(accountant.get_epsilon(delta)))
                target = next(wanted, ledger.total_count + 1)
    return tuple(found)


def _curve_steps(ledger: PrivacyLedger, points: int) -> tuple[int, ...]:
    """Returns numbers of steps at which to show the cost, from one step to all."""
    total = ledger.total_count
    if not total:
        return ()
    even = {-(-total * i // points) for i in range(1, points + 1)}
    # The first of many steps cost the most.
    early = {1, -(-total // 100), -(-total // 40)}
    # The slope changes where the steps do.
    ends = set(itertools.accumulate(count for _, count in ledger)) if len(ledger) <= 8 else set()
    return tuple(sorted(even | early | ends))


def compute(
    ledger: PrivacyLedger, target_delta: float, accountants: Sequence[str] | None = None
) -> Costs:
    """Asks every accountant.

    Args:
        ledger: What was done.
        target_delta: In (0, 1).
        accountants: Names from `tfdp.accounting.ACCOUNTANTS`; by default all whose bounds are
            proven.

    Raises:
        ValueError: there is no accountant of some name.
    """
    proven = filter(_is_proven, ACCOUNTANTS)
    names = list(dict.fromkeys(proven if accountants is None else accountants))
    for name in names:
        if name not in ACCOUNTANTS:
            make_accountant(name)  # Says which there are.
    coarse, kinds, note = coarse_ledger(ledger)
    few = kinds <= _FEW_KINDS
    ledgers = {name: ledger if _is_quick(name) else coarse for name in names}
    try:
        relation = ledger.neighboring_relation or NeighboringRelation.ADD_OR_REMOVE_ONE
    except UnsupportedEventError:
        # No epsilon is about all events, and every accountant says so by itself.
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    deltas = tuple(sorted({target_delta, *_DELTAS}, reverse=True))
    target = deltas.index(target_delta)
    asked = [_cost(ledgers[name], name, relation, deltas, note) for name in names]
    bounds = [cost for cost, _ in asked if cost.is_upper_bound and cost.refusal is None]
    smallest = min(bounds, key=lambda cost: cost.epsilons[target], default=None)
    steps = _curve_steps(ledger, _CURVE_POINTS if few else _FEWER_CURVE_POINTS)
    shown = {
        cost.name
        for cost in bounds
        if cost is smallest
        or cost.name == _BESIDE
        and smallest is not None
        and cost.epsilons[target] <= _LARGEST_SHOWN * smallest.epsilons[target]
    }
    points = POINTS if few else _FEWER_POINTS
    costs = []
    for cost, accountant in asked:
        given = ledgers[cost.name]
        if cost.name in shown and given is not None:
            cost = dataclasses.replace(
                cost,
                # Bounds that are drawn would be drawn anew for every point of a curve.
                curve=_curve(given, cost.name, relation, steps, target_delta)
                if steps and cost.confidence is None
                else None,
                profile=make_profile(accountant.get_epsilon, accountant.get_delta, points),
            )
        costs.append(cost)
    headline = next((cost for cost in costs if smallest and cost.name == smallest.name), None)
    return Costs(deltas, target, steps, tuple(costs), headline)
