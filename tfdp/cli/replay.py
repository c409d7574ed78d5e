"""The command `tfdp replay`: what ledgers hold and cost."""

import argparse
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdp import events
from tfdp.accounting.normal_form import effective_noise_multiplier
from tfdp.accounting.planning.target_delta import careful_lines
from tfdp.accounting.registry import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from tfdp.cli.budget import named_by_options
from tfdp.cli.common import (
    add_key_argument,
    authentication,
    check_out,
    confidences,
    counted,
    epsilon_line,
    finite,
    one_line,
    read_delta,
    read_key,
    rounded_down,
    rounded_up,
)
from tfdp.events.protection import protection
from tfdp.events.step import releases
from tfdp.ledger import codec
from tfdp.ledger.entry import Evidence
from tfdp.report.releases import samplings_of

HELP = "say what a ledger holds and what it costs"
EXAMPLE = "tfdp replay run.ledger --delta 1e-5 --accountant prv"
# Kinds of steps that are printed; JSON has more of them.
_MOST_PRINTED = 20
# What is said of a ledger without a step. Its epsilon is that of weights nobody trained.
_NO_STEP = "no private step was taken: nothing is known of weights that were trained in another way"
_OUT_SUFFIXES = (".csv", ".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument(
        "ledger",
        nargs="+",
        help="file that PrivacyLedger.save wrote, or an export named *.jsonl; several are runs on "
        "one data set, and their costs add up",
    )
    add_key_argument(parser)
    parser.add_argument(
        "--delta", "--target-delta", required=True, help="target delta, between 0 and 1"
    )
    parser.add_argument(
        "--accountant",
        action="append",
        choices=list(ACCOUNTANTS),
        help="may be given several times; default: " + DEFAULT_ACCOUNTANT,
    )
    parser.add_argument("--steps", type=int, metavar="K", help="only the first K steps")
    parser.add_argument("--every", type=int, metavar="K", help="epsilon after every K steps, too")
    parser.add_argument(
        "--out", help="file for these instead of the terminal: *.csv, or a plot, *.png"
    )
    parser.add_argument(
        "--diverged",
        action="store_true",
        help="charge copies of one ledger that were written to after they were copied, all in full",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    from tfdp.accounting.replay import replay

    if arguments.every is None and arguments.out is not None:
        raise ValueError("--out is for the curve of --every K, which is not given.")
    if arguments.out is not None:
        inputs = [*arguments.ledger, arguments.key_file or ""]
        check_out(arguments.out, _OUT_SUFFIXES, inputs)
    delta = read_delta(arguments.delta)
    names = list(dict.fromkeys(arguments.accountant or [DEFAULT_ACCOUNTANT]))
    with named_by_options():
        replayed = replay(
            arguments.ledger,
            delta,
            names,
            steps=arguments.steps,
            every=arguments.every,
            diverged=arguments.diverged,
            key=read_key(arguments.key_file),
        )
    if arguments.out is not None:
        _write_curve(arguments.out, names, delta, replayed.curve)
    summary = _summary(replayed, delta)
    if arguments.out is not None:
        summary["wrote"] = arguments.out
    elif arguments.every is not None:
        summary["curve"] = [
            {"steps": steps, "epsilon": dict(zip(names, map(finite, epsilons), strict=True))}
            for steps, epsilons in replayed.curve
        ]
    says = authentication(arguments.ledger, replayed.evidence)
    if arguments.json:
        authenticated = set(replayed.evidence) == {Evidence.KEY}
        first = {"authenticated": authenticated, "authentication": says}
        return json.dumps({**first, **summary}, indent=2)
    return f"{says}\n{_text(summary)}"


def _write_curve(
    out: str, names: Sequence[str], delta: float, curve: Sequence[tuple[int, Sequence[float]]]
) -> None:
    if out.endswith(".csv"):
        rows = [",".join(map(str, (steps, *epsilons))) for steps, epsilons in curve]
        Path(out).write_text("\n".join([",".join(["steps", *names]), *rows, ""]), encoding="utf-8")
        return
    from tfdp.accounting.planning.plots import line_plot

    lines = {
        name: [(steps, epsilons[i]) for steps, epsilons in curve] for i, name in enumerate(names)
    }
    line_plot(out, lines, x_label="steps", y_label="epsilon", title=f"epsilon at delta = {delta!r}")


def _summary(replayed: Any, delta: float) -> dict[str, Any]:
    return {
        "ledger_ids": list(replayed.ledger_ids),
        "steps": replayed.steps,
        "steps_in_ledgers": replayed.total_steps,
        "mechanisms": [
            {
                "count": count,
                "event": codec.encode(event),
                "noise_multiplier": _multiplier(event),
            }
            for event, count in replayed.listed
        ],
        "steps_of_other_mechanisms": replayed.unlisted_steps,
        "rounded_to_digits": replayed.digits,
        "not_private_because": list(replayed.not_private_because),
        "neighboring_relation": replayed.neighboring_relation.value,
        "priced_by_others": list(replayed.priced_by_others),
        "delta": delta,
        "epsilon": {name: finite(epsilon) for name, epsilon in replayed.epsilons.items()},
        **({"confidence": held} if (held := confidences(list(replayed.epsilons))) else {}),
        "warnings": [
            *([] if replayed.steps else [_NO_STEP]),
            *careful_lines(delta, replayed.population_size),
        ],
    }


def _multiplier(event: events.Event) -> float | str | None:
    # Not everything is a Gaussian sum.
    with contextlib.suppress(events.UnsupportedEventError):
        return finite(effective_noise_multiplier(event))
    return None


def _sampling_lines(event: dict[str, Any]) -> list[str]:
    if event["type"] != "SampledEvent":
        decoded = codec.decode(event)
        none = "none declared, every unit in every step"
        if None not in samplings_of(decoded):
            none = "that of the steps of each run"
        relation, unit = protection(decoded)
        about = "" if unit is None else f", unit: {unit}"
        return [f"sampling: {none} ({relation.value}{about})"]
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


def _relation(event: dict[str, Any]) -> str:
    return protection(codec.decode(event)).neighboring_relation.value


def _mechanism_lines(mechanism: dict[str, Any]) -> list[str]:
    event = mechanism["event"]
    lines = [
        f"{mechanism['count']} x",
        *(f"  {line}" for line in _sampling_lines(event)),
        *(f"  {release.line()}" for release in releases(codec.decode(event))),
    ]
    multiplier = mechanism["noise_multiplier"]
    if multiplier is not None:
        lines.append(f"  effective noise multiplier: {rounded_down(multiplier)}")
    return lines


def _text(summary: dict[str, Any]) -> str:
    ids, steps, held = (summary[key] for key in ("ledger_ids", "steps", "steps_in_ledgers"))
    which = f"first {steps} of {counted(held, 'step')}" if steps != held else counted(steps, "step")
    lines = [f"ledger{'s' if len(ids) > 1 else ''} {', '.join(ids)}: {which}", ""]
    mechanisms = summary["mechanisms"]
    for mechanism in mechanisms[:_MOST_PRINTED]:
        lines.extend([*_mechanism_lines(mechanism), ""])
    others = summary["steps_of_other_mechanisms"]
    others += sum(mechanism["count"] for mechanism in mechanisms[_MOST_PRINTED:])
    if others:
        lines.extend([f"{others} x", "  others", ""])
    if summary["rounded_to_digits"] is not None:
        lines.append(
            f"many kinds of steps: charged with {summary['rounded_to_digits']} digits, upwards"
        )
    about = summary["neighboring_relation"]
    if {_relation(mechanism["event"]) for mechanism in mechanisms} - {about}:
        lines.append(
            f"steps differ in their neighbours: epsilon is about {about}, which all of them cover"
        )
    for point in summary.get("curve", ()):
        shown = ", ".join(
            f"{rounded_up(value)} ({name})" for name, value in point["epsilon"].items()
        )
        lines.append(f"after {counted(point['steps'], 'step')}: epsilon = {shown}")
    for name, epsilon in summary["epsilon"].items():
        lines.append(epsilon_line(epsilon, summary["delta"], name))
    lines.extend(f"not private: {reason}" for reason in summary["not_private_because"])
    lines.extend(f"not priced by tfdp: {other}" for other in summary["priced_by_others"])
    lines.extend(summary["warnings"])
    if "wrote" in summary:
        lines.append(f"wrote {one_line(summary['wrote'])}: epsilon over the steps")
    return "\n".join(lines)
