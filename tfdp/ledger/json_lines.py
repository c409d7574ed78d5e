"""A ledger as text, to read, compare and archive.

A header line, a line per entry, and a line with the digest of all lines before it: SHA-256, and
with a key HMAC-SHA-256, too. Version 1 had no such line.
"""

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from tfdp.ledger import codec
from tfdp.ledger.chain import KEYED, PLAIN, check_key
from tfdp.ledger.entry import (
    READABLE_VERSIONS,
    SCHEMA_VERSION,
    EntryStream,
    Evidence,
    LedgerEntry,
    check_counts,
    check_header,
    make_entry,
    make_header,
)
from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage.files import check_regular
from tfdp.ledger.storage.schema import MAX_ROWS

_FORMAT = "tfdp.ledger"
# Of one line: an event, and what is around it.
_MOST_BYTES = codec.MAX_EVENT_CHARACTERS + 1000


class _Digests:
    """Digests of lines, one after another."""

    def __init__(self, key: bytes | None):
        check_key(key)
        self._plain = hashlib.sha256()
        self._keyed = None if key is None else hmac.new(key, digestmod="sha256")

    def add(self, line: str) -> None:
        # Lone surrogates, which are no UTF-8, are refused where the line is read.
        data = line.encode(errors="surrogatepass") + b"\n"
        self._plain.update(data)
        if self._keyed is not None:
            self._keyed.update(data)

    def line(self) -> dict[str, str]:
        """Returns what the last line of an export says."""
        members = {PLAIN: self._plain.hexdigest()}
        if self._keyed is not None:
            members[KEYED] = self._keyed.hexdigest()
        return members


def _dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def dump(
    ledger_id: str, make_entries: Callable[[], Iterable[LedgerEntry]], key: bytes | None = None
) -> Iterator[str]:
    """Yields a ledger as lines of JSON, each of them ended.

    Args:
        ledger_id: Of the ledger.
        make_entries: Returns the entries; is called twice, as the header counts them.
        key: For the last line.
    """
    digests = _Digests(key)
    header = {"format": _FORMAT, "version": SCHEMA_VERSION}
    header.update(make_header(ledger_id, make_entries()))
    line = _dump(header)
    digests.add(line)
    yield f"{line}\n"
    for event, count in make_entries():
        line = f'{{"event": {codec.to_text(event)}, "count": {count}}}'
        digests.add(line)
        yield f"{line}\n"
    yield f"{_dump(digests.line())}\n"


def _object(line: str, where: str) -> dict[str, Any]:
    value = codec.parse_json(line, where)
    if not isinstance(value, dict):
        raise LedgerFormatError(f"{where} must be a JSON object. Received: {line!r:.200}.")
    return value


def _read_header(line: str) -> tuple[dict[str, Any], int]:
    header = _object(line, "line 1")
    if header.pop("format", None) != _FORMAT:
        raise LedgerFormatError(
            f"line 1 is not the header of an exported tfdp ledger. Received: {line!r:.200}."
        )
    version = header.pop("version", None)
    if type(version) is not int or version not in READABLE_VERSIONS:
        raise LedgerFormatError(
            f"This ledger has version {version!r:.50}; this tfdp reads versions "
            f"{', '.join(map(str, READABLE_VERSIONS))}. Use the tfdp that wrote it, or a newer one."
        )
    for name, kind in (("tfdp_version", str), ("entry_count", int), ("total_count", int)):
        # No bool, and no float of the same value: what was written is read.
        if name in header and type(header[name]) is not kind:
            raise LedgerFormatError(
                f"line 1: {name} must be a {kind.__name__}. Received: {line!r:.200}."
            )
    return header, version


def _read_entries(
    lines: Iterator[str], digests: _Digests | None, found: dict[str, Any]
) -> Iterator[LedgerEntry]:
    """Yields the entries; puts what the line of digests says, if there is one, into `found`."""
    for number, line in enumerate(lines, start=2):
        where = f"line {number}"
        if number > MAX_ROWS + 2:
            raise LedgerFormatError(f"{where}: at most {MAX_ROWS} entries are read.")
        if found:
            raise LedgerFormatError(f"{where} stands behind the line of digests: {line!r:.200}.")
        value = _object(line, where)
        if digests is not None and "event" not in value:
            found.update(value or {"": None})
            continue
        if value.keys() != {"event", "count"}:
            raise LedgerFormatError(
                f"{where} must have the members event and count: {line!r:.200}."
            )
        event = codec.decode(value["event"], f"{where}: event")
        yield make_entry(event, value["count"], where)
        if digests is not None:
            digests.add(line)


def _checked(
    header: dict[str, Any],
    lines: Iterator[str],
    digests: _Digests | None,
    keyed: bool,
    where: str,
) -> Iterator[LedgerEntry]:
    found: dict[str, Any] = {}
    yield from check_counts(header, _read_entries(lines, digests, found), where)
    if digests is None:
        return
    if found.keys() not in ({PLAIN}, {PLAIN, KEYED}):
        raise LedgerFormatError(
            f"{where} was truncated: its last line must hold its digests. Restore it from a copy."
        )
    if keyed and KEYED not in found:
        raise LedgerFormatError(
            f"{where} was written without a key, so that anybody could have written it. Leave the "
            "key out to check it for accidents alone."
        )
    for name, digest in digests.line().items():
        if found[name] != digest:
            key = ", or the key is another one" if name == KEYED else ""
            raise LedgerFormatError(
                f"{where} was edited or damaged{key}: its {name} is not that of its lines. Restore "
                "it from a copy."
            )


def _evidence(version: int, key: bytes | None) -> Evidence:
    if version == 1:
        return Evidence.NONE
    return Evidence.DIGESTS if key is None else Evidence.KEY


def _stream(lines: Iterator[str], where: str, key: bytes | None) -> EntryStream:
    first = next(lines, "")
    if not first:
        raise LedgerFormatError(
            f"{where} is empty, or its first line is: it is no exported ledger. Restore it from a "
            "copy, or export the ledger again."
        )
    if first.startswith("\ufeff"):
        raise LedgerFormatError(
            f"{where} begins with a byte order mark, which an editor or a shell has put there. "
            "Export the ledger again, or save the file as UTF-8 without one."
        )
    header, version = _read_header(first)
    if version != 1 and first.endswith("\r"):
        raise LedgerFormatError(
            f"{where} has lines that end in CRLF, and its digests are of lines that end in LF. "
            "Export the ledger again, or have the ends of lines converted back."
        )
    ledger_id = check_header(header, where)
    if version == 1 and key is not None:
        raise LedgerFormatError(
            f"{where} is of version 1, which has no digests: anybody could have written it. Leave "
            "the key out to read it all the same."
        )
    digests = None if version == 1 else _Digests(key)
    if digests is not None:
        digests.add(first)
    entries = _checked(header, lines, digests, key is not None, where)
    return EntryStream(ledger_id, entries, _evidence(version, key))


def _decode(file: IO[bytes]) -> Iterator[str]:
    number = 0
    while line := file.readline(_MOST_BYTES + 1):
        number += 1
        if len(line) > _MOST_BYTES:
            raise LedgerFormatError(f"line {number} has more than {_MOST_BYTES} bytes.")
        try:
            yield line.removesuffix(b"\n").decode()
        except UnicodeDecodeError as error:
            raise LedgerFormatError(
                f"line {number} is not UTF-8: {error.reason} at offset {error.start}. "
                "Restore the file from a copy."
            ) from error


@contextlib.contextmanager
def open_entries(path: str | os.PathLike[str], key: bytes | None = None) -> Iterator[EntryStream]:
    """Opens an exported ledger to go through its entries one by one.

    Args:
        path: The file.
        key: That its last line was written with.

    Raises:
        OSError: the file cannot be opened.
        LedgerFormatError: it is not an exported ledger; the message names the line.
    """
    check_regular(Path(path), "exported ledger")
    with open(path, "rb") as file:
        with _of_file(path):
            stream = _stream(_decode(file), str(path), key)
        yield stream._replace(entries=_entries_of_file(path, stream.entries))


@contextlib.contextmanager
def _of_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors raised within name the file, besides the line."""
    try:
        yield
    except LedgerFormatError as error:
        if str(path) in str(error):
            raise
        raise LedgerFormatError(f"{path}, {error}") from error


def _entries_of_file(
    path: str | os.PathLike[str], entries: Iterator[LedgerEntry]
) -> Iterator[LedgerEntry]:
    with _of_file(path):
        yield from entries


def loads(text: str, key: bytes | None = None) -> tuple[str, list[LedgerEntry]]:
    """Returns the ledger id and the entries of lines that `dump` yielded.

    Raises:
        TypeError: `text` is no text.
        LedgerFormatError: it is another text; the message names the line.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"text must be a str, what to_json_lines returned. Received: {type(text).__name__}."
        )
    stream = _stream(iter(text.removesuffix("\n").split("\n")), "The text", key)
    return stream.ledger_id, list(stream.entries)
