"""What a ledger asks of accounting: the functions behind `PrivacyLedger`'s methods about cost."""

from typing import TYPE_CHECKING

from tfdp.accounting.dp_events import check_relation
from tfdp.accounting.dp_events import from_dp_event as from_dp_event
from tfdp.accounting.dp_events import to_dp_event as to_dp_event
from tfdp.accounting.planning.budget import epsilon_of as epsilon_of
from tfdp.accounting.planning.budget import remaining as remaining

if TYPE_CHECKING:
    import dp_accounting

    from tfdp.ledger import PrivacyLedger


def compose_dp_event(
    ledger: "PrivacyLedger", accountant: "dp_accounting.PrivacyAccountant"
) -> "dp_accounting.PrivacyAccountant":
    """Composes the whole ledger into an accountant of dp-accounting, and returns that.

    Raises:
        ValueError: the accountant was made for another neighbouring relation.
        UnsupportedEventError: an event has no counterpart there.
    """
    relation = ledger.neighboring_relation
    if relation is not None:
        check_relation(accountant, relation)
    return accountant.compose(to_dp_event(ledger))
