"""The command `tfdp export`: a ledger as JSON lines."""

import argparse
import sys
from collections.abc import Iterator

from tfdp.cli.common import add_key_argument, read_key
from tfdp.ledger import json_lines, storage
from tfdp.ledger.entry import merged

HELP = "print a ledger as JSON lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("ledger", help="file that PrivacyLedger.save or PrivacyLedger.open wrote")
    add_key_argument(parser)


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """Runs the command and yields what it prints, line by line.

    What speaks for the ledger is said on stderr: the lines are the export, and nothing else.
    """
    key = read_key(arguments.key_file)
    with storage.open_book(arguments.ledger, key) as book:
        checked = book.check()
        print(f"tfdp: {book.evidence.value}", file=sys.stderr)
        yield from json_lines.dump(
            book.header.ledger_id, lambda: merged(book.entries(checked)), key
        )
