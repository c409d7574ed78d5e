"""The command `tfdp calibrate`: the noise, steps, batch size or epsilon that fits the rest."""

import argparse
import json

from tfdp.cli.budget import add_budget_arguments, named_by_options, relation_of
from tfdp.cli.common import counted, finite, read_delta

HELP = "find the noise, steps, batch size or epsilon that fits the rest"

_QUANTITIES = {
    "noise": "noise_multiplier",
    "steps": "steps",
    "batch": "batch_size",
    "epsilon": "target_epsilon",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    add_budget_arguments(parser)
    parser.add_argument("--epsilon", type=float, help="the budget")
    parser.add_argument("--noise", type=float, help="noise multiplier")
    parser.add_argument("--batch-size", type=int, help="(expected) units in a sample")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--epochs", type=float, help="in place of --steps")
    parser.add_argument(
        "--solve", choices=list(_QUANTITIES), help="what to find; default: what is not given"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    from tfdp.accounting.planning.calibration import calibrate

    delta = read_delta(arguments.delta)
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
                f"--solve {arguments.solve} finds it: leave it out. Received: {wanted:g}."
            )
    with named_by_options():
        plan = calibrate(
            target_delta=delta,
            population_size=arguments.population,
            epochs=arguments.epochs,
            accountant=arguments.accountant,
            sampling=arguments.sampling,
            neighboring_relation=relation_of(arguments),
            **given,
        )
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
    }
    if arguments.json:
        return json.dumps(result, indent=2)
    epsilon = (
        result["epsilon"] if isinstance(result["epsilon"], str) else f"{result['epsilon']:.6g}"
    )
    lines = [
        f"noise multiplier {plan.noise_multiplier:.6g}",
        f"epsilon = {epsilon} at delta = {delta:g} ({arguments.accountant})",
        f"{counted(plan.steps, 'step')} ({plan.epochs:.6g} epochs) on batches of "
        f"{plan.batch_size} of {plan.population_size} "
        f"({plan.sampling}, {plan.neighboring_relation.value})",
        f"noise-batch ratio {plan.noise_batch_ratio:.6g}",
    ]
    if delta >= 1 / plan.population_size:
        lines.append(
            "careful: delta is not below 1 / population, so it would allow to publish a unit as is"
        )
    return "\n".join(lines)
