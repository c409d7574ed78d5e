"""Where a participant's uploads are charged, before they exist."""

from typing import Protocol

from tfdp.accounting import Budget
from tfdp.events import Event, NonPrivateEvent
from tfdp.events.arguments import check_type
from tfdp.ledger import PrivacyLedger
from tfdp.noise import RandomSource, system_random_source
from tfdp.query.arguments import check_random_source


class Charged(Protocol):
    """An upload with a ledger, and perhaps a budget and a source of noise."""

    ledger: PrivacyLedger
    budget: Budget | None
    random_source: RandomSource | None


def check_charged(upload: Charged) -> None:
    """Refuses a ledger, a budget or a source of noise that is none."""
    check_type("ledger", upload.ledger, PrivacyLedger)
    if upload.budget is not None:
        check_type("budget", upload.budget, Budget)
    check_random_source(upload.random_source)


def charge(upload: Charged, event: Event) -> RandomSource:
    """Writes the event to the ledger, and returns the source that the noise may now come from.

    Raises:
        PrivacyBudgetExceededError: the event does not fit into the budget; nothing is written.
    """
    source = upload.random_source or system_random_source()
    permit = None if upload.budget is None else upload.budget.permit
    upload.ledger.append(NonPrivateEvent() if source.seeded else event, permit=permit)
    return source
