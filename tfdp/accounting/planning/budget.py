"""What is left of a privacy budget."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.rdp import RDPAccountant
from tfdp.events import Event
from tfdp.events.arguments import real_number

if TYPE_CHECKING:
    from tfdp.ledger import PrivacyLedger

# So many further events are as good as any number.
MOST_EVENTS = 2**40


class Remaining(NamedTuple):
    """What is left of (target_epsilon, target_delta).

    Attributes:
        epsilon: target_epsilon less what the ledger costs at target_delta; 0 where it costs more. A
            release that is (epsilon, 0)-differentially private still fits (basic composition);
            further events of the ledger's own kind fit better than this says, and `events` counts
            them.
        events: How many further events fit, 2^40 at most; None where no event is known.
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


def affordable_events(
    ledger: "PrivacyLedger",
    event: Event,
    target_epsilon: float,
    target_delta: float,
    make_accountant: Callable[[], Accountant] = RDPAccountant,
) -> int:
    """Returns how many more times `event` may happen before the ledger costs more than the budget.

    Guarantees:
        So many events, and the ledger before them, replayed by the accountant, cost at most
        target_epsilon at target_delta; one more would cost more. At most 2^40 are counted.
    """

    def fits(count: int) -> bool:
        accountant = ledger.replay(make_accountant())
        if count:
            accountant.compose(event, count)
        return bool(accountant.get_epsilon(target_delta) <= target_epsilon)

    if not fits(0):
        return 0
    low, high = 0, 1
    while high < MOST_EVENTS and fits(high):
        low, high = high, 2 * high
    if high >= MOST_EVENTS:
        return MOST_EVENTS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def remaining(
    ledger: "PrivacyLedger",
    target_epsilon: float,
    target_delta: float,
    *,
    event: Event | None = None,
    accountant: Callable[[], Accountant] | None = None,
) -> Remaining:
    """Returns what the ledger leaves of a budget; see `PrivacyLedger.remaining`."""
    target_epsilon, target_delta = check_budget(target_epsilon, target_delta)
    make = RDPAccountant if accountant is None else accountant
    spent = float(ledger.replay(make()).get_epsilon(target_delta))
    event = _last_event(ledger) if event is None else event
    left = max(0.0, target_epsilon - spent)
    if event is None:
        return Remaining(left, None)
    return Remaining(left, affordable_events(ledger, event, target_epsilon, target_delta, make))


def _last_event(entries: Iterable[tuple[Event, int]]) -> Event | None:
    last = None
    for event, _ in entries:
        last = event
    return last
