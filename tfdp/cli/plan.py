"""The command `tfdp plan`: runs of equal budget, compared."""

import argparse
import contextlib
import sys

from tfdp.cli.budget import add_budget_arguments, named_by_options, relation_of
from tfdp.cli.common import PLOTS, check_out, read_delta
from tfdp.cli.counter import counter

HELP = "compare runs of equal budget by their noise-batch ratio"
EXAMPLE = (
    "tfdp plan --epsilon 2 8 --delta 1e-5 --population 60000 --batch-size 256 1024 --steps 2000"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    add_budget_arguments(parser)
    parser.add_argument(
        "--epsilon",
        "--target-epsilons",
        type=float,
        nargs="+",
        required=True,
        help="budgets",
    )
    parser.add_argument(
        "--batch-size",
        "--batch-sizes",
        type=int,
        nargs="+",
        help="default: powers of four up to the population",
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, nargs="+", default=(), help="of a run")
    length.add_argument(
        "--epochs", type=float, nargs="+", default=(), help="of a run, in place of --steps"
    )
    parser.add_argument(
        "--format", choices=["text", "csv", "json"], default="text", help="default: text"
    )
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
    parser.add_argument("--plot", help="also draw the ratios: *.png, *.svg or *.pdf")


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns what it prints."""
    from tfdp.accounting.planning.plan import plan

    if arguments.plot is not None:
        check_out(arguments.plot, PLOTS, [], "--plot")
    # With --json there is one object, and nothing else.
    is_json = arguments.format == "json"
    counted = contextlib.nullcontext() if is_json else counter("plans", sys.stderr)
    with named_by_options(), counted as progress:
        table = plan(
            arguments.epsilon,
            read_delta(arguments.delta),
            population_size=arguments.population,
            batch_sizes=arguments.batch_size,
            steps=arguments.steps,
            epochs=arguments.epochs,
            accountant=arguments.accountant,
            sampling=arguments.sampling,
            neighboring_relation=relation_of(arguments),
            progress=progress,
        )
    if arguments.plot is not None:
        table.plot(arguments.plot)
    if arguments.format == "csv":
        # The table is its lines, and nothing else.
        for line in table.warnings:
            print(f"tfdp: {line}", file=sys.stderr)
    formats = {"text": table.to_text, "csv": table.to_csv, "json": table.to_json}
    return formats[arguments.format]().removesuffix("\n")
