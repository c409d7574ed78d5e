"""The command `tfdp calibrate`: the noise, steps, batch size or epsilon that fits the rest."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfdp.accounting.planning.target_delta import careful_lines
from tfdp.cli.budget import add_budget_arguments, named_by_options, relation_of
from tfdp.cli.common import counted, epsilon_line, finite, read_delta, rounded_down, rounded_up

if TYPE_CHECKING:
    from tfdp.accounting.planning.training_plan import TrainingPlan

HELP = "find the noise, steps, batch size or epsilon that fits the rest"
EXAMPLE = "tfdp calibrate --epsilon 2 --delta 1e-5 --population 60000 --batch-size 256 --epochs 20"

_QUANTITIES = {
    "noise": "noise_multiplier",
    "steps": "steps",
    "batch": "batch_size",
    "epsilon": "target_epsilon",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    from tfdp.accounting.planning.correlated_plan import MECHANISMS, RUN_SAMPLINGS

    add_budget_arguments(parser, RUN_SAMPLINGS)
    parser.add_argument("--epsilon", "--target-epsilon", type=float, help="the budget")
    parser.add_argument("--noise", "--noise-multiplier", type=float, help="noise multiplier")
    parser.add_argument("--batch-size", type=int, help="(expected) units in a sample")
    parser.add_argument("--steps", type=int, help="how many are taken")
    parser.add_argument("--epochs", type=float, help="in place of --steps")
    parser.add_argument(
        "--solve", choices=list(_QUANTITIES), help="what to find; default: what is not given"
    )
    parser.add_argument(
        "--mechanism",
        choices=["gaussian", *MECHANISMS],
        default="gaussian",
        help="independent noise (default), or noise that remembers: banded matrix factorization "
        "(bandmf), banded inverse square root (bisr), buffered linear Toeplitz (blt), part of the "
        "noise before taken back (lambda_cgd), binary tree",
    )
    parser.add_argument("--bands", type=int, help="of bandmf or bisr; buffers of blt")
    parser.add_argument(
        "--groups",
        type=int,
        help="of cyclic_poisson, or the separation of min_separation; default: as many as bands",
    )
    parser.add_argument(
        "--advantage",
        type=float,
        help="in place of --epsilon: the largest TPR - FPR of a membership attack",
    )
    parser.add_argument(
        "--tpr",
        "--true-positive-rate",
        type=float,
        help="in place of --epsilon: the largest true positive rate at --fpr",
    )
    parser.add_argument(
        "--fpr",
        "--false-positive-rate",
        type=float,
        help="false positive rate that --tpr is about",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    from tfdp.accounting.planning.correlated_plan import RUN_SAMPLINGS

    delta = read_delta(arguments.delta)
    risks = [arguments.advantage, arguments.tpr, arguments.fpr]
    if any(risk is not None for risk in risks):
        return _of_risk(arguments, delta)
    if arguments.mechanism != "gaussian":
        return _of_run(arguments, delta)
    for name in ("bands", "groups"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} is for noise that remembers: give --mechanism bandmf.")
    if arguments.sampling in RUN_SAMPLINGS:
        raise ValueError(
            f"--sampling {arguments.sampling} is for noise that remembers: give --mechanism, or "
            "another sampling."
        )
    from tfdp.accounting.planning.calibration import calibrate

    given = {
        "target_epsilon": arguments.epsilon,
        "noise_multiplier": arguments.noise,
        "batch_size": arguments.batch_size,
        "steps": arguments.steps,
    }
    if arguments.solve is not None:
        wanted = given[_QUANTITIES[arguments.solve]]
        if arguments.solve == "steps" and wanted is None:
            wanted = arguments.epochs
        if wanted is not None:
            raise ValueError(
                f"--solve {arguments.solve} finds it: leave it out. Received: {wanted!r}."
            )
    with named_by_options():
        plan = calibrate(
            target_delta=delta,
            population_size=arguments.population,
            epochs=arguments.epochs,
            accountant=arguments.accountant,
            sampling=arguments.sampling or "poisson",
            neighboring_relation=relation_of(arguments),
            **given,
        )
    return _printed(arguments, plan, delta)


def _of_risk(arguments: argparse.Namespace, delta: float) -> str:
    """Returns what is printed about noise for a target risk."""
    from tfdp.accounting.planning.correlated_plan import RUN_SAMPLINGS
    from tfdp.accounting.planning.risk import noise_for_risk, risk_of

    for name in ("epsilon", "noise", "solve", "bands", "groups"):
        if getattr(arguments, name) is not None:
            raise ValueError(
                "A target risk (--advantage, or --tpr and --fpr) finds the noise of a run: leave "
                f"out --{name}."
            )
    if arguments.mechanism != "gaussian" or arguments.sampling in RUN_SAMPLINGS:
        raise ValueError(
            "A target risk is for independent noise: leave out --mechanism, and take another "
            "--sampling than those of noise that remembers."
        )
    if arguments.batch_size is None:
        raise ValueError("A target risk needs --batch-size.")
    with named_by_options():
        plan = noise_for_risk(
            population_size=arguments.population,
            batch_size=arguments.batch_size,
            steps=arguments.steps,
            epochs=arguments.epochs,
            advantage=arguments.advantage,
            true_positive_rate=arguments.tpr,
            false_positive_rate=arguments.fpr,
            accountant=arguments.accountant,
            sampling=arguments.sampling or "poisson",
            neighboring_relation=relation_of(arguments),
        )
    risk = risk_of(plan, arguments.fpr, arguments.accountant)
    if arguments.fpr is None:
        line, found = f"no attack has an advantage above {rounded_up(risk)}", {"advantage": risk}
    else:
        line = f"no attack has a TPR above {rounded_up(risk)} at FPR {arguments.fpr!r}"
        found = {"true_positive_rate": risk, "false_positive_rate": arguments.fpr}
    return _printed(arguments, plan, delta, found, [line])


def _printed(
    arguments: argparse.Namespace,
    plan: "TrainingPlan",
    delta: float,
    found: Mapping[str, float] | None = None,
    said: Sequence[str] = (),
) -> str:
    """Returns a plan in words or as JSON, with what else was found, which words say so."""
    result = {
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": finite(plan.epsilon(delta, arguments.accountant)),
        "delta": delta,
        "accountant": arguments.accountant,
        "population_size": plan.population_size,
        "batch_size": plan.batch_size,
        "steps": plan.steps,
        "epochs": plan.epochs,
        "noise_batch_ratio": plan.noise_batch_ratio,
        "sampling": plan.sampling,
        "neighboring_relation": plan.neighboring_relation.value,
        **(found or {}),
        "warnings": careful_lines(delta, plan.population_size),
    }
    if arguments.json:
        return json.dumps(result, indent=2)
    lines = [
        *_noise_and_epsilon(result),
        *said,
        f"{counted(plan.steps, 'step')} ({rounded_down(plan.epochs)} epochs) on batches of "
        f"{plan.batch_size} of {plan.population_size} "
        f"({plan.sampling}, {plan.neighboring_relation.value})",
        f"noise-batch ratio {rounded_up(plan.noise_batch_ratio)}",
    ]
    return "\n".join([*lines, *careful_lines(delta, plan.population_size)])


def _of_run(arguments: argparse.Namespace, delta: float) -> str:
    """Returns what is printed about noise that remembers."""
    from tfdp.accounting.planning.correlated_plan import calibrate_correlated

    if arguments.solve not in (None, "noise", "epsilon"):
        raise ValueError(
            f"--mechanism {arguments.mechanism} finds the noise, or the epsilon: its steps and "
            f"batches are one run. Received: --solve {arguments.solve}."
        )
    if arguments.batch_size is None:
        raise ValueError(f"--mechanism {arguments.mechanism} needs --batch-size.")
    with named_by_options():
        plan = calibrate_correlated(
            target_delta=delta,
            population_size=arguments.population,
            batch_size=arguments.batch_size,
            mechanism=arguments.mechanism,
            bands=arguments.bands,
            steps=arguments.steps,
            epochs=arguments.epochs,
            target_epsilon=arguments.epsilon,
            noise_multiplier=arguments.noise,
            sampling=arguments.sampling or "fixed_order",
            groups=arguments.groups,
            accountant=arguments.accountant,
            neighboring_relation=relation_of(arguments),
        )
    result = {
        "mechanism": arguments.mechanism,
        "bands": arguments.bands,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": finite(plan.epsilon(delta, arguments.accountant)),
        "delta": delta,
        "accountant": arguments.accountant,
        "population_size": plan.population_size,
        "batch_size": plan.batch_size,
        "steps": plan.steps,
        "period": plan.period,
        "root_mean_squared_error": plan.error(),
        "max_error": plan.error("max"),
        "sampling": plan.sampling,
        "neighboring_relation": plan.neighboring_relation.value,
        "warnings": careful_lines(delta, plan.population_size),
    }
    if arguments.json:
        return json.dumps(result, indent=2)
    lines = [
        *_noise_and_epsilon(result),
        f"{counted(plan.steps, 'step')}, a unit in every {plan.period}th, on batches of "
        f"{plan.batch_size} of {plan.population_size} "
        f"({plan.sampling}, {plan.neighboring_relation.value})",
        f"error of running sums of average gradients, in clip norms: "
        f"{rounded_up(plan.error())} root mean squared, {rounded_up(plan.error('max'))} at most",
    ]
    return "\n".join([*lines, *careful_lines(delta, plan.population_size)])


def _noise_and_epsilon(result: dict[str, Any]) -> list[str]:
    return [
        # Whoever trains with what is printed stays within epsilon.
        f"noise multiplier {rounded_up(result['noise_multiplier'])}",
        epsilon_line(result["epsilon"], result["delta"], result["accountant"]),
    ]
