"""One entry of a ledger, and the header that stands before the entries of a stored one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfdp import __version__
from tfdp.ledger import codec
from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.events import Event

# Version of what is stored: of the tables of a ledger file and of the lines of an export.
SCHEMA_VERSION = 1
# The largest count that an SQLite integer holds.
MAX_COUNT = 2**63 - 1


class LedgerEntry(NamedTuple):
    """`event` happened `count` times in a row."""

    event: Event
    count: int  # type: ignore[assignment]  # Not tuple.count.


def total_count(entries: Sequence[LedgerEntry]) -> int:
    """Returns the number of events, repetitions included."""
    return sum(entry.count for entry in entries)


def make_header(ledger_id: str, entries: Sequence[LedgerEntry]) -> dict[str, Any]:
    """Returns what is stored beside the entries, so that missing ones are noticed."""
    return {
        "ledger_id": ledger_id,
        "tfdp_version": __version__,
        "entry_count": len(entries),
        "total_count": total_count(entries),
    }


def check_header(header: Mapping[str, Any], entries: Sequence[LedgerEntry], where: str) -> str:
    """Returns the ledger id of a header that agrees with the entries.

    Raises:
        LedgerFormatError: the header is malformed, or counts other entries than these.
    """
    if header.keys() != {"ledger_id", "tfdp_version", "entry_count", "total_count"}:
        raise LedgerFormatError(
            f"{where} has a malformed header. Received: {sorted(map(str, header))}."
        )
    ledger_id = header["ledger_id"]
    if not isinstance(ledger_id, str) or not re.fullmatch("[0-9a-f]{32}", ledger_id):
        raise LedgerFormatError(f"{where} has a malformed ledger_id. Received: {ledger_id!r:.200}.")
    for name, found in (("entry_count", len(entries)), ("total_count", total_count(entries))):
        if isinstance(header[name], bool) or header[name] != found:
            raise LedgerFormatError(
                f"{where} was truncated or edited: its header says {name}={header[name]!r:.200}, "
                f"but it holds {found}. Restore it from a copy."
            )
    if header["total_count"] > MAX_COUNT:
        raise LedgerFormatError(f"{where} counts more than {MAX_COUNT} events.")
    return ledger_id


def decode_entry(event: Any, count: Any, where: str) -> LedgerEntry:
    """Returns the entry that was stored as an event's JSON value and a count.

    Raises:
        LedgerFormatError: either is malformed.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
        raise LedgerFormatError(
            f"{where}: count must be an integer of at least 1. Received: {count!r:.200}."
        )
    return LedgerEntry(codec.decode(event, f"{where}: event"), count)
