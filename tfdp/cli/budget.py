"""What the commands about a budget share."""

import argparse
import contextlib
import re
from collections.abc import Iterator, Sequence

from tfdp import events
from tfdp.cli.common import add_accountant_argument


def add_budget_arguments(
    parser: argparse.ArgumentParser, more_samplings: Sequence[str] = ()
) -> None:
    """Adds what every command about a budget takes.

    Args:
        parser: Of the command.
        more_samplings: Names that --sampling takes besides those of `TrainingPlan`. Where there are
            any, it has no default.
    """
    from tfdp.accounting.planning.training_plan import SAMPLINGS

    parser.add_argument(
        "--delta", "--target-delta", required=True, help="target delta, between 0 and 1"
    )
    parser.add_argument(
        "--population",
        "--population-size",
        type=int,
        required=True,
        help="units in the data set",
    )
    add_accountant_argument(parser)
    default = None if more_samplings else "poisson"
    parser.add_argument(
        "--sampling",
        choices=[*SAMPLINGS, *more_samplings],
        default=default,
        help="how samples are drawn; default: "
        + ("that of the mechanism, poisson for independent noise" if more_samplings else "poisson"),
    )
    parser.add_argument(
        "--relation",
        "--neighboring-relation",
        choices=[relation.value for relation in events.NeighboringRelation],
        help="which data sets are neighbours; default: what tfdp.sampling has for the sampling",
    )


# The arguments of functions, and what the command line calls them.
_OPTIONS = {
    "advantage": "--advantage",
    "bands": "--bands",
    "batch_size": "--batch-size",
    "batch_sizes": "--batch-size",
    "buffers": "--bands",
    "confidence": "--confidence",
    "epochs": "--epochs",
    "every": "--every",
    "false_positive_rate": "--fpr",
    "groups": "--groups",
    "guesses": "--guesses",
    "mechanism": "--mechanism",
    "neighboring_relation": "--relation",
    "noise_multiplier": "--noise",
    "population_size": "--population",
    "sampling": "--sampling",
    "steps": "--steps",
    "target_delta": "--delta",
    "target_epsilon": "--epsilon",
    "target_epsilons": "--epsilon",
    "true_positive_rate": "--tpr",
}
# What an event holds, as Python shows it, stays as it is.
_NAMED = re.compile(
    rf"\w+\(.*\)|(?<![\w-])({'|'.join(_OPTIONS)})(?=( must|'|=))"
    r"|\b(population_size(?=\.)|(?:true|false)_positive_rate|(?<=either )advantage)"
)


def _option(found: re.Match[str]) -> str:
    return _OPTIONS.get(found[1] or found[3] or "", found[0])


@contextlib.contextmanager
def named_by_options() -> Iterator[None]:
    """Errors raised within name what is wrong as the command line does, not as functions do."""
    try:
        yield
    except ValueError as error:
        text = _NAMED.sub(_option, str(error))
        raise ValueError(text) from error


def relation_of(arguments: argparse.Namespace) -> events.NeighboringRelation | None:
    """Returns the relation that --relation names, or None."""
    return None if arguments.relation is None else events.NeighboringRelation(arguments.relation)
