"""The command `tfdp verify`: whether a ledger is as it was written."""

import argparse
import json
from collections.abc import Iterator

from tfdp.cli.common import read_key
from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage import Verified, verify

HELP = "check that a ledger is as it was written"
EXAMPLE = "tfdp verify run.ledger --key-file key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("ledger", help="file that PrivacyLedger.save or PrivacyLedger.open wrote")
    parser.add_argument("--key-file", help="file that holds the key of PrivacyLedger.open, as is")
    parser.add_argument(
        "--head", help="what an earlier verify printed: the ledger must be the same, or go on after"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """Runs the command and yields what it prints.

    Raises:
        LedgerFormatError: at the end, if nothing was checked: whoever edits a ledger can write into
            it that it has a key.
    """
    verified = verify(arguments.ledger, read_key(arguments.key_file), arguments.head)
    yield f"{_said(arguments, verified)}\n"
    if not verified.checked:
        raise LedgerFormatError(
            f"{arguments.ledger} was not checked: it says that it was written with a key. Give the "
            "key (--key-file). If it never had one, somebody edited it."
        )


def _said(arguments: argparse.Namespace, verified: Verified) -> str:
    header = verified.header
    # What stands in a file that was not checked is no head to compare with one that was noted.
    head = header.head if verified.checked else None
    if arguments.json:
        return json.dumps(
            {
                "ledger_id": header.ledger_id,
                "dataset_id": header.dataset_id,
                "entries": header.num_rows,
                "steps": header.total_count,
                "checked": verified.checked,
                "authenticated": verified.checked and header.keyed,
                "steps_at_head": verified.count_at_head,
                "head": head,
            },
            indent=2,
        )
    about = "" if header.dataset_id is None else f" about data set {header.dataset_id!r}"
    lines = [
        f"ledger {header.ledger_id}{about}: {header.num_rows} entries, {header.total_count} steps"
    ]
    if not verified.checked:
        lines.append("not authenticated: its digests need the key (--key-file)")
    elif header.keyed:
        lines.append("every entry is as it was written by who has the key")
    else:
        lines.append(
            "every entry follows from the one before; without a key, whoever rewrites all of the "
            "file can make that so: compare the head with one that was noted elsewhere"
        )
    if arguments.head is not None:
        lines.append(
            f"it goes on after the given head, at which it held {verified.count_at_head} steps"
            f"{_given_back(verified.count_at_head, header.total_count)}"
        )
    if head is not None:
        lines.append(f"head {head}")
    return "\n".join(lines)


def _given_back(then: int | None, now: int) -> str:
    if then is None or now >= then:
        return ""
    return f": {then - now} of them were reserved, and were given back unused"
