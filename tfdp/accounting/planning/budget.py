"""What is left of a privacy budget, and the budget that refuses what it does not cover."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.normal_form import normal_form
from tfdp.accounting.planning.boundary import Axis, find_boundary
from tfdp.accounting.registry import (
    AccountantChoice,
    check_proven,
    replayed,
)
from tfdp.events import Event, UnsupportedEventError
from tfdp.events.arguments import real_number
from tfdp.events.protection import protection
from tfdp.events.shown import shown_down, shown_up

if TYPE_CHECKING:
    from tfdp.ledger import PrivacyLedger

# So many further events are as good as any number.
MOST_EVENTS = 2**40
# By so much, relatively, sums of epsilons may exceed a budget: they are rounded, 3 times 0.1 too.
_ROUNDING = 1e-12


class PrivacyBudgetExceededError(RuntimeError):
    """The next step or query would spend more than the budget."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) that everything in a ledger, and what comes next, must stay within.

    Args:
        epsilon: The most that may be spent; positive.
        delta: In (0, 1); well below 1 / number of records.
        accountant: What prices the ledger: a name in `tfdp.accounting.ACCOUNTANTS`, a class, or an
            empty accountant; by default "prv".

    Raises:
        TypeError: a number is none.
        ValueError: it is out of range, or there is no such accountant.

    Example:
        >>> from tfdp.events import PureEpsilonEvent
        >>> from tfdp.ledger import PrivacyLedger
        >>> ledger, budget = PrivacyLedger(), Budget(epsilon=1.0, delta=1e-6)
        >>> ledger.append(PureEpsilonEvent(0.75), permit=budget.permit)
        >>> round(budget.left(ledger), 3)
        0.25
        >>> ledger.append(PureEpsilonEvent(0.5), permit=budget.permit)
        Traceback (most recent call last):
        ...
        tfdp...PrivacyBudgetExceededError: ... What is left is epsilon 0.25...
    """

    epsilon: float
    delta: float
    accountant: AccountantChoice = None

    def __post_init__(self) -> None:
        epsilon, delta = check_budget(self.epsilon, self.delta)
        check_proven(self.accountant)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def left(self, ledger: "PrivacyLedger") -> float:
        """Returns the epsilon that the ledger leaves, zero where it costs more than the budget."""
        return max(0.0, self.epsilon - self._cost(ledger, None))

    def permit(self, ledger: "PrivacyLedger", event: Event) -> int:
        """Returns 1 if the event fits into the budget; an argument of `PrivacyLedger.append`.

        Raises:
            PrivacyBudgetExceededError: it does not; the message says what is left.
            UnsupportedEventError: the accountant refuses the event, or the ledger.
        """
        cost = self._cost(ledger, event)
        if not cost <= self.epsilon * (1 + _ROUNDING):  # NaN is no price, either.
            raise PrivacyBudgetExceededError(
                f"With this the ledger would cost epsilon {shown_up(cost)} at delta "
                f"{self.delta!r}, and the budget is epsilon {self.epsilon!r}. What is left is "
                f"epsilon {shown_down(self.left(ledger))}. Nothing was released or charged: ask "
                "with more noise."
            )
        return 1

    def _cost(self, ledger: "PrivacyLedger", event: Event | None) -> float:
        entries = ledger if event is None else [*ledger, (event, 1)]
        accountant = replayed(entries, self.accountant)
        # Where all is pure, the sum of the epsilons may be less than what holds at every delta.
        return min(float(accountant.get_epsilon(delta)) for delta in (self.delta, 0.0))


class Remaining(NamedTuple):
    """What is left of (target_epsilon, target_delta).

    Attributes:
        epsilon: target_epsilon less what the ledger costs at target_delta; 0 where it costs more. A
            release that is (epsilon, 0)-differentially private still fits (basic composition);
            further events of the ledger's own kind fit better than this says, and `events` counts
            them.
        events: How many further events fit, 2^40 at most; None where no event is known, or the last
            one of the ledger cannot happen again (a step of a run on separated samples).
    """

    epsilon: float
    events: int | None


def check_budget(target_epsilon: float, target_delta: float) -> tuple[float, float]:
    """Returns both as floats.

    Raises:
        TypeError: one is not a number.
        ValueError: epsilon is not positive and finite, or delta not in (0, 1).
    """
    epsilon = real_number("target_epsilon", target_epsilon, minimum=0, inclusive=False)
    delta = real_number("target_delta", target_delta, minimum=0, inclusive=False, maximum=1)
    if delta == 1:
        raise ValueError("target_delta must be less than 1. Received: target_delta=1.")
    return epsilon, delta


def kind_of(event: Event) -> Hashable:
    """Returns what two events have in common that cost the same, whenever they happen."""
    try:
        form = normal_form(event)
    except UnsupportedEventError:  # An accountant that is not ours may know it.
        return event
    # Steps of a pass or of a run count once, so that which one it is matters.
    return (form, protection(event)) if form.stands_alone else event


def check_price(ledger: "PrivacyLedger", event: Event, accountant: AccountantChoice = None) -> None:
    """Raises UnsupportedEventError if the accountant refuses the ledger or one event more."""
    replayed([*ledger, (event, 1)], accountant)


def affordable_events(
    ledger: "PrivacyLedger",
    event: Event,
    target_epsilon: float,
    target_delta: float,
    accountant: AccountantChoice = None,
) -> int:
    """Returns how many more times `event` may happen before the ledger costs more than the budget.

    Guarantees:
        So many events, and the ledger before them, replayed by the accountant, cost at most
        target_epsilon at target_delta; one more would cost more. At most 2^40 are counted.

    Args:
        ledger: What was done so far.
        event: What would be done next, again and again.
        target_epsilon: The budget, with what is in the ledger.
        target_delta: Likewise.
        accountant: As in `PrivacyLedger.epsilon`.
    """
    check_proven(accountant)
    made = replayed(ledger, accountant)
    if isinstance(made, Accountant) and made.takes_back:
        return affordable_beside(made, event, target_epsilon, target_delta, ledger.total_count)
    if not float(made.get_epsilon(target_delta)) <= target_epsilon:
        return 0

    def cost(count: float) -> float:
        longer = [*ledger, (event, int(count))]
        return float(replayed(longer, accountant).get_epsilon(target_delta))

    return _most(cost, target_epsilon, ledger.total_count)


def affordable_beside(
    spent: Accountant,
    event: Event,
    target_epsilon: float,
    target_delta: float,
    num_events: int,
    most: int = MOST_EVENTS,
) -> int:
    """Returns what `affordable_events` does, in a time that does not depend on what was spent.

    Args:
        spent: Into which the ledger was composed; it is afterwards as before.
        event: As in `affordable_events`.
        target_epsilon: Likewise.
        target_delta: Likewise.
        num_events: About so many were composed.
        most: So many are as good as any number.
    """
    if spent.get_epsilon(target_delta) > target_epsilon:
        return 0

    def cost(count: float) -> float:
        with spent.composed_meanwhile(event, int(count)):
            return spent.get_epsilon(target_delta)

    return _most(cost, target_epsilon, num_events, most)


def _most(
    cost: Callable[[float], float], target_epsilon: float, start: int, most: int = MOST_EVENTS
) -> int:
    axis = Axis(1, most, integer=True, tolerance=0.0)
    within, _ = find_boundary(cost, target_epsilon, axis, start=max(100, start))
    return 0 if within is None else int(within.x)


def epsilon_of(
    ledger: "PrivacyLedger",
    target_delta: float,
    accountant: AccountantChoice = None,
) -> float:
    """Returns what the ledger costs; see `PrivacyLedger.epsilon`."""
    return float(replayed(ledger, accountant).get_epsilon(target_delta))


def remaining(
    ledger: "PrivacyLedger",
    target_epsilon: float,
    target_delta: float,
    *,
    event: Event | None = None,
    accountant: AccountantChoice = None,
) -> Remaining:
    """Returns what the ledger leaves of a budget.

    Args:
        ledger: As `self` in `PrivacyLedger.remaining`, which has the other arguments, too.
        target_epsilon: The budget.
        target_delta: The budget.
        event: What would be done next; by default the last event of the ledger.
        accountant: As in `PrivacyLedger.epsilon`.
    """
    target_epsilon, target_delta = check_budget(target_epsilon, target_delta)
    spent = epsilon_of(ledger, target_delta, accountant)
    left, last = max(0.0, target_epsilon - spent), _last_event(ledger)
    following = last if event is None else event
    if following is None:
        return Remaining(left, None)
    budget = target_epsilon, target_delta
    try:
        return Remaining(left, affordable_events(ledger, following, *budget, accountant))
    except UnsupportedEventError:
        if event is not None:
            raise
        return Remaining(left, None)


def _last_event(entries: Iterable[tuple[Event, int]]) -> Event | None:
    last = None
    for event, _ in entries:
        last = event
    return last
