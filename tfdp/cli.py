"""The command line: `tfdp replay` prices a ledger, `tfdp export` prints it. No TensorFlow."""

import argparse
import collections
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdp.accounting.normal_form import effective_noise_multiplier
from tfdp.accounting.registry import ACCOUNTANTS, make_accountant
from tfdp.ledger import codec, events
from tfdp.ledger.ledger import PrivacyLedger


def _delta(text: str) -> float:
    try:
        delta = float(text)
    except ValueError:
        delta = math.nan
    if not 0 < delta < 1:
        raise ValueError(f"--delta must be a number between 0 and 1. Received: --delta {text}")
    return delta


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfdp", description="Differential privacy: ledgers and what they cost."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="say what a ledger holds and what it costs")
    replay.add_argument(
        "ledger", help="file that PrivacyLedger.save wrote, or an export named *.jsonl"
    )
    replay.add_argument("--delta", required=True, help="target delta, between 0 and 1")
    replay.add_argument(
        "--accountant",
        action="append",
        choices=list(ACCOUNTANTS),
        help="may be given several times; default: rdp and pld",
    )
    replay.add_argument("--json", action="store_true", help="print one JSON object")
    replay.set_defaults(run=_replay)
    export = commands.add_parser("export", help="print a ledger as JSON lines")
    export.add_argument("ledger", help="file that PrivacyLedger.save wrote")
    export.set_defaults(run=_export)
    return parser


def _load(path: str) -> PrivacyLedger:
    if path.endswith(".jsonl"):
        return PrivacyLedger.from_json_lines(Path(path).read_text(encoding="utf-8"))
    return PrivacyLedger.load(path)


def _parts(event: events.Event) -> list[events.Event]:
    """Returns the releases about one sample, in order, without the events that only group them."""
    if isinstance(event, events.SampledEvent):
        return _parts(event.event)
    if isinstance(event, events.ComposedEvent):
        return [leaf for part in event.events for leaf in _parts(part)]
    return [event]


def _why_not_private(event: events.Event) -> list[str]:
    reasons = set()
    for part in _parts(event):
        if isinstance(part, events.NonPrivateEvent):
            reasons.add("something was released without protection (NonPrivateEvent)")
        elif isinstance(part, events.GaussianSumEvent) and part.seeded:
            reasons.add("the noise was seeded: whoever knows the seed can subtract it")
        elif isinstance(part, events.GaussianSumEvent) and part.noise_multiplier == 0:
            reasons.add("the noise was zero")
    return sorted(reasons)


def _mechanisms(ledger: PrivacyLedger) -> list[tuple[events.Event, int]]:
    totals: collections.Counter[events.Event] = collections.Counter()
    for event, count in ledger:
        totals[event] += count
    return list(totals.items())


def _finite(number: float) -> float | str:
    """Returns what stands for `number` in JSON, which has no infinity."""
    return number if math.isfinite(number) else "inf"


def _summary(ledger: PrivacyLedger, delta: float, names: Sequence[str]) -> dict[str, Any]:
    relation = ledger.neighboring_relation or events.NeighboringRelation.ADD_OR_REMOVE_ONE
    mechanisms = _mechanisms(ledger)
    epsilons = {
        name: float(ledger.replay(make_accountant(name, relation)).get_epsilon(delta))
        for name in names
    }
    return {
        "ledger_id": ledger.ledger_id,
        "steps": ledger.total_count,
        "mechanisms": [
            {
                "count": count,
                "event": codec.encode(event),
                "noise_multiplier": _finite(effective_noise_multiplier(event)),
            }
            for event, count in mechanisms
        ],
        "not_private_because": sorted(
            {reason for e, _ in mechanisms for reason in _why_not_private(e)}
        ),
        "neighboring_relation": relation.value,
        "delta": delta,
        "epsilon": {name: _finite(epsilon) for name, epsilon in epsilons.items()},
    }


def _sampling_lines(event: dict[str, Any]) -> list[str]:
    if event["type"] != "SampledEvent":
        return ["sampling: none declared, every unit in every step (add_or_remove_one)"]
    sampling = event["sampling"]
    fields = ", ".join(
        f"{name} {'unknown' if value is None else value}"
        for name, value in sampling.items()
        if name != "type"
    )
    return [
        f"sampling: {sampling['type']}{f' ({fields})' if fields else ''}",
        f"neighbours: {event['neighboring_relation']}, unit: {event['privacy_unit']}",
    ]


def _part_line(part: events.Event) -> str:
    if isinstance(part, events.GaussianSumEvent):
        seeded = ", seeded" if part.seeded else ""
        return (
            f"sum: l2 norm bound {part.l2_norm_bound:g}, noise stddev {part.noise_stddev:g}{seeded}"
        )
    return f"release: {type(part).__name__}"


def _mechanism_lines(mechanism: dict[str, Any]) -> list[str]:
    event = mechanism["event"]
    multiplier = mechanism["noise_multiplier"]
    shown = multiplier if isinstance(multiplier, str) else f"{multiplier:.6g}"
    return [
        f"{mechanism['count']} x",
        *(f"  {line}" for line in _sampling_lines(event)),
        *(f"  {_part_line(part)}" for part in _parts(codec.decode(event))),
        f"  effective noise multiplier: {shown}",
    ]


def _text(summary: dict[str, Any]) -> str:
    lines = [f"ledger {summary['ledger_id']}: {summary['steps']} steps", ""]
    for mechanism in summary["mechanisms"]:
        lines.extend([*_mechanism_lines(mechanism), ""])
    for name, epsilon in summary["epsilon"].items():
        shown = epsilon if isinstance(epsilon, str) else f"{epsilon:.6g}"
        lines.append(f"epsilon = {shown} at delta = {summary['delta']:g} ({name})")
    lines.extend(f"not private: {reason}" for reason in summary["not_private_because"])
    return "\n".join(lines)


def _replay(arguments: argparse.Namespace) -> str:
    names = arguments.accountant or ["rdp", "pld"]
    delta = _delta(arguments.delta)
    summary = _summary(_load(arguments.ledger), delta, names)
    return json.dumps(summary, indent=2) if arguments.json else _text(summary)


def _export(arguments: argparse.Namespace) -> str:
    return PrivacyLedger.load(arguments.ledger).to_json_lines().removesuffix("\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, or 2 after an error on stderr."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        print(arguments.run(arguments))
    except (OSError, ValueError, ModuleNotFoundError) as error:
        print(f"tfdp: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
