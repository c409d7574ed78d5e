"""The command `tfdp export`: a ledger as JSON lines."""

import argparse
import json
import sys
from collections.abc import Iterator

from tfdp.cli.common import add_key_argument, read_key
from tfdp.ledger import json_lines, storage
from tfdp.ledger.entry import Evidence, merged

HELP = "print a ledger as JSON lines"
EXAMPLE = "tfdp export run.ledger > run.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("ledger", help="file that PrivacyLedger.save or PrivacyLedger.open wrote")
    add_key_argument(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object of these lines and of what speaks for them; commands read the "
        "lines alone",
    )


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """Runs the command and yields what it prints, line by line.

    What speaks for the ledger is said on stderr: the lines are the export, and nothing else.
    """
    key = read_key(arguments.key_file)
    with storage.open_book(arguments.ledger, key) as book:
        checked = book.check()
        says = book.evidence
        lines = json_lines.dump(book.header.ledger_id, lambda: merged(book.entries(checked)), key)
        if not arguments.json:
            print(f"tfdp: {says.value}", file=sys.stderr)
            yield from lines
            return
        first = {"authenticated": says is Evidence.KEY, "authentication": says.value}
        yield json.dumps(first)[:-1]
        for number, line in enumerate(lines):
            yield (",\n" if number else ', "lines": [\n') + line.removesuffix("\n")
        yield "\n]}\n"
