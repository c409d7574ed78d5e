"""The command `tfdp export`: a ledger as JSON lines."""

import argparse

from tfdp.ledger.ledger import PrivacyLedger

HELP = "print a ledger as JSON lines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("ledger", help="file that PrivacyLedger.save wrote")


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    return PrivacyLedger.load(arguments.ledger).to_json_lines().removesuffix("\n")
