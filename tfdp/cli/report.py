"""The command `tfdp report`: what a ledger holds, as a document."""

import argparse
import hashlib
import json
from pathlib import Path

from tfdp.accounting.registry import ACCOUNTANTS
from tfdp.accounting.replay import open_ledger
from tfdp.cli.budget import named_by_options
from tfdp.cli.common import add_key_argument, check_out, one_line, read_delta, read_key
from tfdp.cli.predictions import FILE_HELP, add_attack_arguments, attack_options, attacks_on
from tfdp.ledger import PrivacyLedger

HELP = "write what a ledger holds as a document"
EXAMPLE = "tfdp report run.ledger --out report.html"
# What the reader may be told of the training, which no ledger holds.
_ABOUT = ("model", "data", "date", "purpose")
_FORMATS = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument(
        "ledger", help="file that PrivacyLedger.save wrote, or an export named *.jsonl"
    )
    add_key_argument(parser)
    parser.add_argument("--out", required=True, help="file to write: *.html or *.md")
    parser.add_argument(
        "--format", choices=["html", "markdown"], help="default: what the name of --out says"
    )
    parser.add_argument(
        "--delta",
        "--target-delta",
        help="target delta; default: the power of ten below 1 / population",
    )
    parser.add_argument(
        "--accountant",
        action="append",
        choices=list(ACCOUNTANTS),
        help="may be given several times; default: all",
    )
    parser.add_argument(
        "--group-size",
        action="append",
        type=int,
        default=[],
        help="show epsilon of groups of so many units, too; may be given several times",
    )
    parser.add_argument(
        "--predictions",
        help=f"attacks on these are shown beside what the ledger allows; {FILE_HELP}",
    )
    add_attack_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print what was written as one JSON object"
    )
    for name in _ABOUT:
        parser.add_argument(f"--{name}", help=f"the {name}, to be shown as not from the ledger")


def _format(arguments: argparse.Namespace) -> str:
    if arguments.format is not None:
        return str(arguments.format)
    suffix = Path(arguments.out).suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(
            f"--out must end in one of {', '.join(_FORMATS)}, or --format say what to write. "
            f"Received: --out {arguments.out}"
        )
    return _FORMATS[suffix]


def _given(arguments: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Returns the options that `gather` does not see, with names of files without their folders."""
    given: list[tuple[str, str | None]] = []
    if arguments.key_file is not None:
        given.append(("--key-file", Path(arguments.key_file).name))
    if arguments.predictions is not None:
        given.append(("--predictions", Path(arguments.predictions).name))
        given += attack_options(arguments)
    about = ((name, getattr(arguments, name)) for name in _ABOUT)
    return [*given, *((f"--{name}", text) for name, text in about if text is not None)]


def _digest_of(path: str) -> str:
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return f"{Path(path).name} (SHA-256 {digest})"


def run(arguments: argparse.Namespace) -> str:
    """Writes the report and returns a line that says so."""
    from tfdp import report

    render = {"html": report.to_html, "markdown": report.to_markdown}[_format(arguments)]
    delta = None if arguments.delta is None else read_delta(arguments.delta)
    predictions = arguments.predictions
    for size in arguments.group_size:
        if size < 1:
            raise ValueError(f"--group-size must be at least 1. Received: --group-size {size}")
    inputs = [arguments.ledger, predictions or "", arguments.key_file or ""]
    check_out(arguments.out, (), inputs)
    with named_by_options():
        attacks = [] if predictions is None else attacks_on(predictions, arguments)
    with open_ledger(arguments.ledger, read_key(arguments.key_file)) as stream:
        ledger = PrivacyLedger.from_stream(stream)
    says = stream.evidence.value
    about = {name: getattr(arguments, name) for name in _ABOUT}
    facts = report.gather(
        ledger,
        delta,
        arguments.accountant,
        Path(arguments.ledger).name,
        dataset_id=stream.dataset_id,
        about={name: text for name, text in about.items() if text is not None},
        authentication=says,
        attacks=attacks,
        group_sizes=arguments.group_size,
        attacked=None if predictions is None else _digest_of(predictions),
        options=_given(arguments),
    )
    Path(arguments.out).write_text(render(facts), encoding="utf-8", newline="\n")
    if arguments.json:
        written = {"wrote": arguments.out, "verdict": facts.summary.verdict}
        return json.dumps({"authentication": says, **written}, indent=2)
    return f"{says}\nwrote {one_line(arguments.out)}: {facts.summary.verdict}"
