"""What reading a ledger's text must come to, whatever the text is: for tests that make texts up."""

import hashlib
import json
import re

from tfdp.ledger import LedgerFormatError, PrivacyLedger, codec

# A refusal names the place: a line, or the text as a whole.
_PLACE = re.compile(r"\bline \d+\b|\bThe text\b|\bThis ledger\b")


def resealed(text):
    """Returns the text with the digest of its lines in the last one, whatever that is."""
    *lines, _ = text.removesuffix("\n").split("\n")
    kept = "".join(f"{line}\n" for line in lines)
    digest = hashlib.sha256(kept.encode(errors="surrogatepass")).hexdigest()
    return f'{kept}{{"sha256": "{digest}"}}\n'


def of_version_1(text):
    """Returns the text as version 1 had it: without the last line."""
    *lines, _ = text.removesuffix("\n").split("\n")
    return "".join(f"{line}\n" for line in lines).replace('"version": 2', '"version": 1', 1)


def read(text):
    """Returns the ledger, or None where the text is refused in good order.

    Anything else is an AssertionError, or the error that came out of the parser.
    """
    try:
        ledger = PrivacyLedger.from_json_lines(text)
    except LedgerFormatError as error:
        assert _PLACE.search(str(error)), f"no place in {error}"
        assert len(str(error)) < 10_000, "the message is as long as the text"
        return None
    _check_numbers(ledger, text)
    # What was read can be written, and is then read as the same.
    assert PrivacyLedger.from_json_lines(ledger.to_json_lines()) == ledger
    return ledger


def _check_numbers(ledger, text):
    """Holds the ledger against what the standard library makes of every line."""
    _, *lines = (json.loads(line) for line in text.removesuffix("\n").split("\n"))
    entries = [(line["event"], line["count"]) for line in lines if "event" in line]
    assert ledger.total_count == sum(count for _, count in entries)
    written = [codec.encode(event) for event, count in ledger for _ in range(min(count, 50))]
    expected, last = [], None
    for event, count in entries:
        # Equal neighbours are one entry of a ledger.
        before = last[1] if last is not None and last[0] == event else 0
        expected += [event] * (min(before + count, 50) - min(before, 50))
        last = (event, before + count)
    assert written == expected


def read_event(value):
    """Returns the event of a JSON value, or None where it is refused in good order."""
    try:
        event = codec.decode(value)
    except LedgerFormatError as error:
        assert str(error).startswith("event"), f"no place in {error}"
        assert len(str(error)) < 10_000, "the message is as long as the value"
        return None
    assert codec.encode(event) == value
    assert codec.decode(codec.encode(event)) == event
    return event
