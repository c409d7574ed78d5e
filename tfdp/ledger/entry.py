"""One entry of a ledger, and the header that stands before the entries of a stored one."""

import dataclasses
import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tfdp import __version__
from tfdp.events import Event, SampledEvent
from tfdp.ledger.errors import LedgerFormatError

# Version of the lines of an export. Version 1 has no line of digests.
SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)
# The largest count that an SQLite integer holds.
MAX_COUNT = 2**63 - 1


class LedgerEntry(NamedTuple):
    """`event` happened `count` times in a row."""

    event: Event
    count: int  # type: ignore[assignment]  # Not tuple.count.


def pass_index(event: Event) -> int:
    """Returns the number of the pass over shuffled data that a step is of, or -1."""
    return event.sampling.pass_number if isinstance(event, SampledEvent) else -1


class PassNumbers:
    """Numbers passes of ledgers that are priced together, so that no two share a number.

    Each ledger counts its passes from zero. Passes of different ledgers are different passes: what
    two of them have begun is not one.

    Args:
        first: The number of the first pass.
    """

    def __init__(self, first: int = 0):
        self._first = first
        self._next = first

    def begin_ledger(self) -> None:
        """Says that what follows is of another ledger."""
        self._first = self._next

    def renumbered(self, event: Event) -> Event:
        """Returns the event with the number of its pass among those of all ledgers."""
        index = pass_index(event)
        if not isinstance(event, SampledEvent) or index < 0:
            return event
        self._next = max(self._next, self._first + index + 1)
        if not self._first:
            return event
        return dataclasses.replace(event, sampling=event.sampling.in_pass(self._first + index))


def total_count(entries: Sequence[LedgerEntry]) -> int:
    """Returns the number of events, repetitions included."""
    return sum(entry.count for entry in entries)


def merged(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Yields one entry for each run of equal events."""
    for event, group in itertools.groupby(entries, key=lambda entry: entry.event):
        yield LedgerEntry(event, sum(entry.count for entry in group))


def make_header(ledger_id: str, entries: Iterable[LedgerEntry]) -> dict[str, Any]:
    """Returns what is stored beside the entries, so that missing ones are noticed."""
    num_entries = total = 0
    for entry in entries:
        num_entries, total = num_entries + 1, total + entry.count
    return {
        "ledger_id": ledger_id,
        "tfdp_version": __version__,
        "entry_count": num_entries,
        "total_count": total,
    }


class Evidence(enum.Enum):
    """What speaks for a stored ledger. Without the key whoever can write can forge it."""

    KEY = "authenticated: every entry is as it was written by who has the key"
    KEY_NOT_GIVEN = "not authenticated: it was written with a key, which was not given"
    DIGESTS = "not authenticated: without a key its digests show accidents only"
    NONE = "not authenticated: it carries no digest, so that not even accidents show"


class EntryStream(NamedTuple):
    """A ledger that is read entry by entry.

    Attributes:
        ledger_id: 32 hexadecimal digits.
        entries: To be gone through once, to the end: only there is it known that none is missing.
        evidence: What speaks for the entries, once they were gone through.
        dataset_id: Which data set they are about; None where that is not known.
    """

    ledger_id: str
    entries: Iterator[LedgerEntry]
    evidence: Evidence
    dataset_id: str | None = None


def check_header(header: Mapping[str, Any], where: str) -> str:
    """Returns the ledger id of a well-formed header of an export.

    Raises:
        LedgerFormatError: the header is malformed.
    """
    if header.keys() != {"ledger_id", "tfdp_version", "entry_count", "total_count"}:
        raise LedgerFormatError(
            f"{where} has a malformed header. Received: {sorted(map(str, header))}."
        )
    return check_ledger_id(header["ledger_id"], where)


def check_ledger_id(ledger_id: Any, where: str) -> str:
    """Returns `ledger_id`.

    Raises:
        LedgerFormatError: it is malformed.
    """
    if not isinstance(ledger_id, str) or not re.fullmatch("[0-9a-f]{32}", ledger_id):
        raise LedgerFormatError(f"{where} has a malformed ledger_id. Received: {ledger_id!r:.200}.")
    return ledger_id


def check_counts(
    header: Mapping[str, Any], entries: Iterator[LedgerEntry], where: str
) -> Iterator[LedgerEntry]:
    """Yields the entries, and after the last one compares them with what the header says.

    Raises:
        LedgerFormatError: the header counts other entries than these.
    """
    found = {"entry_count": 0, "total_count": 0}
    for entry in entries:
        found["entry_count"] += 1
        found["total_count"] += entry.count
        yield entry
    for name, number in found.items():
        if isinstance(header[name], bool) or header[name] != number:
            raise LedgerFormatError(
                f"{where} was truncated or edited: its header says {name}={header[name]!r:.200}, "
                f"but it holds {number}. Restore it from a copy."
            )
    if found["total_count"] > MAX_COUNT:
        raise LedgerFormatError(f"{where} counts more than {MAX_COUNT} events.")


def make_entry(event: Event, count: Any, where: str) -> LedgerEntry:
    """Returns the entry of an event and a count that were stored.

    Raises:
        LedgerFormatError: the count is malformed.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
        raise LedgerFormatError(
            f"{where}: count must be an integer of at least 1. Received: {count!r:.200}."
        )
    return LedgerEntry(event, count)
