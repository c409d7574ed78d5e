"""The command `tfdp audit`: what predictions or scores of canaries show, against a claim."""

import argparse
import dataclasses
import decimal
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp.accounting.planning.target_delta import careful_lines, largest_population
from tfdp.accounting.prv import PRVAccountant
from tfdp.accounting.registry import replayed
from tfdp.accounting.replay import open_ledger
from tfdp.cli.budget import named_by_options
from tfdp.cli.common import (
    PLOTS,
    add_accountant_argument,
    add_key_argument,
    check_out,
    counted,
    described,
    epsilon_line,
    finite,
    one_line,
    read_delta,
    read_key,
    rounded_down,
    rounded_up,
)
from tfdp.cli.predictions import (
    FILE_HELP,
    add_attack_arguments,
    attacks_on,
    check_arrays,
    load_arrays,
)
from tfdp.events import (
    Event,
    NeighboringRelation,
    SampledEvent,
    UnsupportedEventError,
    scale_sensitivity,
)
from tfdp.events.protection import common_protection, protection
from tfdp.ledger import PrivacyLedger

HELP = "hold predictions of a model, or scores of canaries, against what a ledger claims"
EXAMPLE = "tfdp audit epsilon canaries.npz --ledger run.ledger --delta 1e-5"
_OF_MEMBERSHIP = (
    "tfdp audit membership predictions.npz --ledger run.ledger --delta 1e-5 --plot attacks.png"
)
# Shares of the canaries that are guessed where --guesses is not given. They show most of a Gaussian
# with mu = 1 where canaries may depend on each other, and where they do not.
_GUESSED, _GUESSED_INDEPENDENTLY = 0.1, 0.7
_SMALLEST_RATE = 1e-4
# Of the trade-off curve of each noise that is asked about.
_POINTS = 24
# Of steps, whose distributions are all computed for the least epsilon.
_MOST_KINDS = 200
# Said of canaries that are in or out, beside such a claim.
_ONE_SIZE = (
    "careful: neighbours are of one size (replace_one), so that the claim is about canaries of "
    "which another record takes the place where they are out"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    kinds = parser.add_subparsers(dest="kind", required=True)
    membership = kinds.add_parser(
        "membership", **described("attacks on predictions of a trained model", _OF_MEMBERSHIP)
    )
    membership.add_argument("predictions", help=FILE_HELP)
    add_attack_arguments(membership)
    membership.add_argument("--plot", help="file for the curves: *.png, *.svg or *.pdf")
    epsilon = kinds.add_parser(
        "epsilon", **described("lower bounds from one run with canaries", EXAMPLE)
    )
    epsilon.add_argument(
        "scores",
        help="*.npz with scores [canaries], larger where a canary is believed to be in, and "
        "inserted [canaries] (booleans), drawn by fair coins",
    )
    epsilon.add_argument(
        "--guesses",
        type=int,
        help="how many coins to guess, decided upon before the coins are looked at; default: "
        "10 %% of the canaries, and 70 %% where they count as independent",
    )
    epsilon.add_argument(
        "--confidence", type=float, default=0.95, help="of each bound; default: 0.95"
    )
    for kind in (membership, epsilon):
        kind.add_argument("--ledger", help="what is claimed: file of PrivacyLedger, or *.jsonl")
        add_key_argument(kind)
        kind.add_argument(
            "--delta", "--target-delta", required=kind is epsilon, help="target delta"
        )
        add_accountant_argument(kind)
        kind.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    delta = None if arguments.delta is None else read_delta(arguments.delta)
    with named_by_options():
        if arguments.kind == "membership":
            return _membership(arguments, delta)
        if delta is None:
            raise ValueError("--delta is needed.")
        return _epsilon(arguments, delta)


def _claim(arguments: argparse.Namespace, delta: float | None) -> dict[str, Any] | None:
    """Returns what the ledger claims, with its trade-off curve; None without a ledger."""
    from tfdp import report

    if arguments.ledger is None:
        return None
    with open_ledger(arguments.ledger, read_key(arguments.key_file)) as stream:
        ledger = PrivacyLedger.from_stream(stream)
    says = stream.evidence.value
    costs = report.gather(ledger, delta, [arguments.accountant], authentication=says).costs
    if costs.headline is None or costs.headline.profile is None:
        raise ValueError(
            f"{arguments.accountant} has no price for {arguments.ledger}: `tfdp replay` says why."
        )
    return {
        "ledger": arguments.ledger,
        "authentication": says,
        "epsilon": costs.epsilon,
        "delta": costs.target_delta,
        "accountant": arguments.accountant,
        "profile": costs.headline.profile,
        "held": ledger,
        "warnings": careful_lines(costs.target_delta, largest_population(e for e, _ in ledger)),
    }


def _shown(claim: dict[str, Any] | None) -> dict[str, Any] | None:
    if claim is None:
        return None
    shown = {k: value for k, value in claim.items() if k not in ("profile", "held")}
    return {**shown, "epsilon": finite(claim["epsilon"]), "advantage": claim["profile"].advantage}


def _claim_lines(claim: dict[str, Any]) -> list[str]:
    said = epsilon_line(claim["epsilon"], claim["delta"], claim["accountant"])
    return [
        f"claimed by {one_line(claim['ledger'])} ({claim['authentication']}): {said}",
        *claim["warnings"],
    ]


def _at_most(probability: float) -> str:
    """Returns a probability to four places, rounded up."""
    exact = decimal.Decimal(repr(float(probability)))
    return str(exact.quantize(decimal.Decimal("0.0001"), decimal.ROUND_CEILING))


# Predictions.


def _membership(arguments: argparse.Namespace, delta: float | None) -> str:
    if arguments.plot is not None:
        inputs = [arguments.predictions, arguments.ledger or ""]
        check_out(arguments.plot, PLOTS, inputs, "--plot")
    attacks = attacks_on(arguments.predictions, arguments)
    claim = _claim(arguments, delta)
    if arguments.plot is not None:
        _plot(arguments.plot, [a for a in attacks if a.on_all_records], claim)
    results = [_attack_result(found_attack, claim, len(attacks)) for found_attack in attacks]
    if arguments.json:
        shown = {"confidence": arguments.confidence, "claim": _shown(claim), "attacks": results}
        return json.dumps(shown, indent=2)
    return "\n".join(_membership_lines(results, claim, arguments.confidence))


def _attack_result(found: Any, claim: dict[str, Any] | None, attacks: int) -> dict[str, Any]:
    from tfdp.report.attempts import verdict

    def interval(estimate: Any) -> dict[str, float]:
        return {"value": estimate.value, "lower": estimate.lower, "upper": estimate.upper}

    result = {
        "score": found.name,
        "records": found.slice_name,
        "members": found.roc.members,
        "others": found.roc.others,
        "auc": interval(found.auc),
        "advantage": found.advantage,
        "advantage_interval": interval(found.advantage_interval),
        "true_positive_rate": {
            f"{rate:g}": interval(estimate) for rate, estimate in found.true_positive_rates.items()
        },
    }
    if claim is not None:
        rate = claim["profile"].true_positive_rate
        result["claimed_true_positive_rate"] = {
            f"{x:g}": rate(x) for x in found.true_positive_rates
        }
        above = found.above_the_bound(rate, attacks)
        result["verdict"] = verdict(above)
        result["above_the_claim"] = above
    return result


def _membership_lines(
    results: Sequence[dict[str, Any]], claim: dict[str, Any] | None, confidence: float
) -> list[str]:
    from tfdp.audit.membership import Estimate
    from tfdp.report import numbers

    def interval(number: dict[str, float]) -> str:
        return numbers.interval(Estimate(**number))

    lines = [f"intervals hold the truth with a confidence of {confidence!r}, each"]
    if claim is not None:
        lines.append(
            f"verdicts: where no attack is above what is claimed, that none is called so has a "
            f"confidence of {confidence!r}, for all {counted(len(results), 'attack')} together"
        )
    for result in results:
        lines += [
            "",
            f"{result['score']}, {result['records']}: "
            f"{result['members']} members, {result['others']} others",
            f"  AUC {interval(result['auc'])}",
            f"  advantage {interval(result['advantage_interval'])}",
        ]
        if claim is not None:
            lines[-1] += f"; at most {_at_most(claim['profile'].advantage)} is claimed"
        for rate, found in result["true_positive_rate"].items():
            line = f"  TPR at FPR {rate}: {interval(found)}"
            if claim is not None:
                claimed = _at_most(result["claimed_true_positive_rate"][rate])
                line += f"; at most {claimed} is claimed"
            lines.append(line)
        if claim is not None:
            lines.append(f"  verdict: {result['verdict']}")
            lines += [f"    {said}" for said in result["above_the_claim"]]
    if claim is not None:
        lines += ["", *_claim_lines(claim)]
        lines.append(f"  an advantage of {_at_most(claim['profile'].advantage)} at most")
    return lines


def _plot(path: str, attacks: Sequence[Any], claim: dict[str, Any] | None) -> None:
    from tfdp.accounting.planning.plots import line_plot

    rates = np.geomspace(_SMALLEST_RATE, 1, 200).tolist()
    lines = {
        found.name: [(x, max(found.roc.true_positive_rate(x), _SMALLEST_RATE)) for x in rates]
        for found in attacks
    }
    if claim is not None:
        bound = claim["profile"].true_positive_rate
        lines["at most, by the ledger"] = [(x, bound(x)) for x in rates]
    lines["guessing"] = [(x, x) for x in rates]
    line_plot(
        path,
        lines,
        x_label="false positive rate",
        y_label="true positive rate",
        title="membership inference",
        logarithmic=True,
    )


# Canaries.


def _epsilon(arguments: argparse.Namespace, delta: float) -> str:
    from tfdp import audit
    from tfdp.accounting.analytic_gaussian import gaussian_epsilon
    from tfdp.audit.order_statistics import ASSUMPTIONS

    path = arguments.scores
    found = load_arrays(path, ("scores", "inserted"))
    check_arrays(found, path, ("scores", "inserted"))
    scores, inserted = found["scores"], found["inserted"]
    claim = _claim(arguments, delta)
    if claim is not None and _is_of_one_size(claim):
        claim["warnings"].append(_ONE_SIZE)

    def counts(share: float) -> tuple[int, int, int]:
        guesses = arguments.guesses
        if guesses is None:
            guesses = max(1, round(share * scores.size))
        return audit.correct_guesses(scores, inserted, guesses), guesses, scores.size

    few, many = counts(_GUESSED), counts(_GUESSED_INDEPENDENTLY)

    def gaussian(mu: float) -> dict[str, float]:
        return {"mu": mu, "epsilon": gaussian_epsilon(mu, delta) if mu > 0 else 0.0}

    confidence = arguments.confidence
    result: dict[str, Any] = {
        "confidence": confidence,
        "delta": delta,
        "canaries": int(scores.size),
        "inserted": int(inserted.sum()),
        "any_canaries": {
            "guesses": few[1],
            "correct": few[0],
            "epsilon": audit.epsilon_lower_bound_of_guesses(*few, delta, confidence),
            "gaussian": gaussian(audit.mu_lower_bound_of_guesses(*few, confidence)),
        },
        "independent_canaries": {
            "guesses": many[1],
            "correct": many[0],
            "gaussian": gaussian(audit.mu_lower_bound_of_independent_guesses(*many, confidence)),
            "assumptions": list(ASSUMPTIONS),
        },
        "claim": _shown(claim),
    }
    if claim is not None:
        p = audit.p_value_of_independent_guesses(*many, claim["profile"].true_positive_rate)
        result["independent_canaries"]["p_value_of_the_claim"] = p
        result["independent_canaries"]["measured"] = _measured(many, claim, confidence)
        result["epsilon_above_the_claim"] = result["any_canaries"]["epsilon"] > claim["epsilon"]
        result["claim_refuted_if_independent"] = p < 1 - confidence
    if arguments.json:
        return json.dumps(result, indent=2)
    return "\n".join(_epsilon_lines(result, claim))


def _is_of_one_size(claim: dict[str, Any]) -> bool:
    about = common_protection(protection(event) for event, _ in claim["held"])
    return about is not None and about.neighboring_relation is NeighboringRelation.REPLACE_ONE


def _measured(
    counts: tuple[int, int, int], claim: dict[str, Any], confidence: float
) -> dict[str, Any]:
    """Returns what the run proves of the ledger's own training with other noise.

    Its epsilon is a lower bound whoever makes the claim: the upper bound of a loose accountant may
    be far above what any run shows.
    """
    from tfdp.audit import sensitivity_factor_lower_bound
    from tfdp.report.costs import coarse_ledger
    from tfdp.report.tradeoff import make_profile

    # What costs at least as much refutes no more. No factor may be asked about for minutes.
    coarse, _, note = coarse_ledger(claim["held"])
    if coarse is None:
        return {"refusal": note}

    def accountant(ledger: PrivacyLedger, factor: float) -> Any:
        entries = [(_heavier(event, factor), count) for event, count in ledger]
        return replayed(entries, PRVAccountant)

    def rates_of(factor: float) -> Any:
        made = accountant(coarse, factor)
        return make_profile(made.get_epsilon, made.get_delta, _POINTS).true_positive_rate

    try:
        factor = sensitivity_factor_lower_bound(*counts, rates_of, confidence)
        epsilon = 0.0
        # Of what costs more, a least epsilon says nothing.
        known = coarse is claim["held"] or len({e for e, _ in claim["held"]}) <= _MOST_KINDS
        if factor > 0 and known:
            epsilon = accountant(claim["held"], factor).get_epsilon_interval(claim["delta"]).lower
    except UnsupportedEventError as error:
        return {"refusal": str(error)}
    return {"sensitivity_factor": factor, "epsilon": finite(epsilon)}


def _heavier(event: Event, factor: float) -> Event:
    """Returns the event of the same samples, whose records move sums so much further."""
    if isinstance(event, SampledEvent):
        return dataclasses.replace(event, event=scale_sensitivity(event.event, factor))
    return scale_sensitivity(event, factor)


def _measured_line(found: dict[str, Any]) -> str:
    if "refusal" in found:
        return f"  no epsilon of this ledger with other noise: {found['refusal']}"
    if found["sensitivity_factor"] == 0:
        return "  measured, if canaries are independent: nothing"
    of = f"this ledger with noise divided by {rounded_down(found['sensitivity_factor'], 3)}"
    if found["epsilon"] == 0:
        return f"  measured, if canaries are independent: {of}, of which no least epsilon is known"
    return (
        f"  measured, if canaries are independent: epsilon >= "
        f"{rounded_down(found['epsilon'], 4)}, that of {of}"
    )


def _epsilon_lines(result: dict[str, Any], claim: dict[str, Any] | None) -> list[str]:
    any_canaries, independent = result["any_canaries"], result["independent_canaries"]

    def gaussian(found: dict[str, Any]) -> str:
        return (
            f"mu >= {rounded_down(found['gaussian']['mu'], 4)}, which is epsilon >= "
            f"{rounded_down(found['gaussian']['epsilon'], 4)} of a Gaussian trade-off"
        )

    def guessed(found: dict[str, Any]) -> str:
        return f"{found['correct']} of {found['guesses']} guesses are right"

    lines = [
        f"{result['canaries']} canaries, {result['inserted']} of them in; "
        f"delta = {result['delta']!r}, confidence {result['confidence']!r} for each bound",
        "",
        f"whatever the canaries have to do with each other: {guessed(any_canaries)}",
        f"  epsilon >= {rounded_down(any_canaries['epsilon'], 4)} (Steinke et al. 2023)",
        f"  {gaussian(any_canaries)} (Mahloujifar et al. 2024)",
        "",
        f"independent canaries: {guessed(independent)}",
        f"  {gaussian(independent)} (order statistics)",
        "  assumed:",
        *(f"    - {assumption}" for assumption in independent["assumptions"]),
    ]
    if claim is not None:
        refuted = result["claim_refuted_if_independent"]
        probability = rounded_up(independent["p_value_of_the_claim"], 3)
        lines += [
            "",
            *_claim_lines(claim),
            f"  under the claim, so many right guesses have a probability of {probability} at "
            f"most, if canaries are independent: {'refuted' if refuted else 'not refuted'}",
            _measured_line(independent["measured"]),
        ]
        if result["epsilon_above_the_claim"]:
            lines.append("  refuted, whatever the canaries have to do with each other")
    return lines
