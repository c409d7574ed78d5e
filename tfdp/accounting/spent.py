"""The epsilon of a ledger that grows."""

from tfdp.accounting import Accountant
from tfdp.accounting.planning.budget import (
    MOST_EVENTS,
    affordable_beside,
    affordable_events,
)
from tfdp.accounting.registry import AccountantChoice, accountant_maker
from tfdp.events import Event, NeighboringRelation
from tfdp.ledger import PrivacyLedger


class Spent:
    """Prices a ledger again and again, composing only what came since the last time.

    Guarantees:
        Equal to a replay of the whole ledger. Another ledger, or one in which events were taken
        back, is replayed from its beginning.

    Args:
        accountant: A name, a class or an empty accountant (`tfdp.accounting.registry`). One that is
            not tfdp's own replays all, every time.
    """

    def __init__(self, accountant: AccountantChoice = None):
        self._choice, self._make = accountant, accountant_maker(accountant)
        self._forget()

    def _forget(self) -> None:
        self._ledger: PrivacyLedger | None = None
        self._accountant: Accountant | None = None
        # What was composed: entries before `_position`, and `_count` of the entry there.
        self._position = self._count = self._total = self._revision = 0

    def epsilon(self, ledger: PrivacyLedger, target_delta: float) -> float:
        """Returns the epsilon of everything that the ledger holds now."""
        return float(self._accountant_of(ledger).get_epsilon(target_delta))

    def affordable_events(
        self,
        ledger: PrivacyLedger,
        event: Event,
        target_epsilon: float,
        target_delta: float,
        most: int = MOST_EVENTS,
    ) -> int:
        """Returns how many more times `event` fits into a budget, at least.

        Args:
            ledger: As in `tfdp.accounting.planning.budget.affordable_events`.
            event: Likewise.
            target_epsilon: Likewise.
            target_delta: Likewise.
            most: So many are as good as any number; the fewer, the less time it takes.
        """
        accountant, total = self._accountant_of(ledger), ledger.total_count
        if isinstance(accountant, Accountant) and accountant.takes_back:
            return affordable_beside(accountant, event, target_epsilon, target_delta, total, most)
        return affordable_events(ledger, event, target_epsilon, target_delta, self._choice)

    def _accountant_of(self, ledger: PrivacyLedger) -> Accountant:
        same = ledger is self._ledger and ledger.revision == self._revision
        if not same or ledger.total_count < self._total:
            self._forget()
        accountant = self._accountant
        if accountant is None:
            relation = ledger.neighboring_relation
            accountant = self._make(relation or NeighboringRelation.ADD_OR_REMOVE_ONE)
        if not isinstance(accountant, Accountant):
            return ledger.replay(accountant)
        position, done = self._position, self._count
        # Where an event is refused, nothing is kept.
        self._forget()
        for event, count in ledger.entries_from(position):
            if count > done:
                accountant.compose(event, count - done)
            position, done, last = position + 1, 0, count
        if ledger.total_count:
            # The last entry may still grow.
            self._position, self._count = position - 1, last
        self._ledger, self._accountant, self._total = ledger, accountant, ledger.total_count
        self._revision = ledger.revision
        return accountant
