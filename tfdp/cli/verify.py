"""The command `tfdp verify`: whether a ledger is as it was written."""

import argparse
from pathlib import Path

HELP = "check that a ledger is as it was written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("ledger", help="file that PrivacyLedger.save or PrivacyLedger.open wrote")
    parser.add_argument("--key-file", help="file that holds the key of PrivacyLedger.open, as is")
    parser.add_argument(
        "--head", help="what an earlier verify printed: the ledger must be the same, or go on after"
    )


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    from tfdp.ledger.storage import verify

    key = None if arguments.key_file is None else Path(arguments.key_file).read_bytes()
    verified = verify(arguments.ledger, key, arguments.head)
    header = verified.header
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
        lines.append("it holds all that the given head stood for")
    lines.append(f"head {header.head}")
    return "\n".join(lines)
