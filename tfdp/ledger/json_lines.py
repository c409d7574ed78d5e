"""A ledger as text, to read, compare and archive: a header line, then one line per entry."""

import json
from collections.abc import Sequence
from typing import Any

from tfdp.ledger import codec
from tfdp.ledger.entry import SCHEMA_VERSION, LedgerEntry, check_header, decode_entry, make_header
from tfdp.ledger.errors import LedgerFormatError

_FORMAT = "tfdp.ledger"


def _dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def dumps(ledger_id: str, entries: Sequence[LedgerEntry]) -> str:
    """Returns the ledger as lines of JSON, the last one ended too."""
    header = {"format": _FORMAT, "version": SCHEMA_VERSION, **make_header(ledger_id, entries)}
    lines = [header, *({"event": codec.encode(e.event), "count": e.count} for e in entries)]
    return "".join(f"{_dump(line)}\n" for line in lines)


def _object(line: str, where: str) -> dict[str, Any]:
    value = codec.parse_json(line, where)
    if not isinstance(value, dict):
        raise LedgerFormatError(f"{where} must be a JSON object. Received: {line!r:.200}.")
    return value


def _read_header(line: str) -> dict[str, Any]:
    header = _object(line, "line 1")
    if header.pop("format", None) != _FORMAT:
        raise LedgerFormatError(
            f"line 1 is not the header of an exported tfdp ledger. Received: {line!r:.200}."
        )
    version = header.pop("version", None)
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise LedgerFormatError(
            f"This ledger has version {version!r:.50}; this tfdp reads version {SCHEMA_VERSION}. "
            "Use the tfdp that wrote it, or a newer one."
        )
    return header


def loads(text: str) -> tuple[str, list[LedgerEntry]]:
    """Returns the ledger id and the entries that `dumps` wrote.

    Raises:
        LedgerFormatError: `text` is anything else; the message names the line.
    """
    lines = text.removesuffix("\n").split("\n")
    header = _read_header(lines[0])
    entries = []
    for number, line in enumerate(lines[1:], start=2):
        value = _object(line, f"line {number}")
        if value.keys() != {"event", "count"}:
            raise LedgerFormatError(
                f"line {number} must have the members event and count: {line!r:.200}."
            )
        entries.append(decode_entry(value["event"], value["count"], f"line {number}"))
    return check_header(header, entries, "The text"), entries
