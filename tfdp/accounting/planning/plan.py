"""Noise-batch ratios against batch size, steps and epsilon: what a run can afford.

The noise that privacy adds to an average gradient has, in units of the clip norm, the standard
deviation noise_multiplier / batch_size on every coordinate. Given the model, the batch size and the
number of steps, the loss of private training depends on the privacy budget through this one number
(McKenna et al. 2025, arXiv:2501.18914). So runs of equal budget are compared by it, before anything
is trained.
"""

import csv
import dataclasses
import io
import itertools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from tfdp.accounting.planning.calibration import UnreachableBudgetError, calibrate
from tfdp.accounting.planning.target_delta import careful_lines
from tfdp.accounting.planning.training_plan import (
    TrainingPlan,
    steps_of_epochs,
)
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT, AccountantChoice, accountant_name
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer, several
from tfdp.events.shown import shown_down, shown_up

_COLUMNS = (
    "target_epsilon",
    "batch_size",
    "steps",
    "epochs",
    "noise_multiplier",
    "noise_batch_ratio",
)


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One budget, and the run that just fits it.

    Attributes:
        target_epsilon: The budget.
        batch_size: (Expected) units in a sample.
        steps: How many.
        length: What was asked for, such as "20 epochs".
        plan: The run; None where the budget is out of reach.
        problem: Why it is; empty where it is not.
    """

    target_epsilon: float
    batch_size: int
    steps: int
    length: str
    plan: TrainingPlan | None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class PlanTable:
    """Rows in the order of budgets, then of steps or epochs, then of batch sizes.

    Attributes:
        population_size: Units in the data set.
        target_delta: That of all budgets.
        accountant: Name of the accountant that every row satisfies.
        rows: One for every combination.
    """

    population_size: int
    target_delta: float
    accountant: str
    rows: tuple[PlanRow, ...]

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "target_epsilon": row.target_epsilon,
                "batch_size": row.batch_size,
                "steps": row.steps,
                "epochs": row.steps * row.batch_size / self.population_size,
                "noise_multiplier": None if row.plan is None else row.plan.noise_multiplier,
                "noise_batch_ratio": None if row.plan is None else row.plan.noise_batch_ratio,
            }
            for row in self.rows
        ]

    @property
    def warnings(self) -> list[str]:
        """Lines about a delta that is too large for the population; empty for others."""
        return careful_lines(self.target_delta, self.population_size)

    def to_text(self) -> str:
        """Returns aligned columns, a note for every budget that is out of reach, and warnings."""
        cells = [
            ["-" if record[name] is None else _shown(name, record[name]) for name in _COLUMNS]
            for record in self._records()
        ]
        heads = [name.replace("_", " ") for name in _COLUMNS]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        lines = [
            f"{self.population_size} units, delta = {shown_up(self.target_delta)}, "
            f"{self.accountant}",
            "",
            *(
                "  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True))
                for r in [heads, *cells]
            ),
        ]
        notes = [*dict.fromkeys(row.problem for row in self.rows if row.problem), *self.warnings]
        return "\n".join([*lines, *(f"\n{note}" for note in notes)])

    def to_csv(self) -> str:
        """Returns lines of comma-separated values, with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._records())
        return text.getvalue()

    def to_json(self) -> str:
        """Returns one JSON object; what is out of reach is null, with the reason beside it."""
        rows = [
            {**record, "problem": row.problem or None}
            for record, row in zip(self._records(), self.rows, strict=True)
        ]
        return json.dumps(
            {
                "population_size": self.population_size,
                "delta": self.target_delta,
                "accountant": self.accountant,
                "rows": rows,
                "warnings": self.warnings,
            },
            indent=2,
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the ratios over batch sizes, or over steps where there is one batch size.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        from tfdp.accounting.planning.plots import line_plot

        over_steps = len({row.batch_size for row in self.rows}) == 1
        lines: dict[str, list[tuple[float, float]]] = {}
        for row, record in zip(self.rows, self._records(), strict=True):
            if row.plan is None:
                continue
            label = f"epsilon {shown_up(row.target_epsilon)}"
            if not over_steps:
                label += f", {row.length}"
            x = row.steps if over_steps else row.batch_size
            lines.setdefault(label, []).append((x, record["noise_batch_ratio"]))
        line_plot(
            path,
            lines,
            x_label="steps" if over_steps else "batch size",
            y_label="noise multiplier / batch size",
            title=f"{self.population_size} units, delta {shown_up(self.target_delta)}, "
            f"{self.accountant}",
            logarithmic=True,
        )


def _shown(name: str, value: float) -> str:
    """Returns a number of a column: whoever trains with the noise that is shown stays within the
    epsilon that is.
    """
    if isinstance(value, int):
        return str(value)
    return shown_down(value) if name == "epochs" else shown_up(value)


def default_batch_sizes(population_size: int) -> tuple[int, ...]:
    """Returns powers of four from 64 on, up to the population, and the population itself."""
    powers = [4**k for k in range(3, 32) if 4**k < population_size]
    return (*powers, positive_integer("population_size", population_size))


def plan(
    target_epsilons: Sequence[float],
    target_delta: float,
    *,
    population_size: int,
    batch_sizes: Sequence[int] | None = None,
    steps: Sequence[int] = (),
    epochs: Sequence[float] = (),
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PlanTable:
    """Returns the least noise for every combination of budget, batch size and length of a run.

    Edge cases:
        A budget that is out of reach is a row with the reason.

    Args:
        target_epsilons: Budgets.
        target_delta: Between 0 and 1.
        population_size: Units in the data set; public.
        batch_sizes: (Expected) units in a sample; by default powers of four.
        steps: Lengths of runs.
        epochs: Lengths of runs, in place of `steps`.
        accountant: As in `calibrate`.
        sampling: As in `calibrate`.
        neighboring_relation: As in `calibrate`.
        progress: Called with (rows that are done, all) after each.

    Raises:
        ValueError: not exactly one of `steps` and `epochs` is given, or a number is out of range.
        TypeError: an argument is of the wrong type.

    Example:
        >>> table = plan(
        ...     [1.0], 1e-7, population_size=10**6, batch_sizes=[512, 2048], steps=[100]
        ... )
        >>> [round(row.plan.noise_batch_ratio * 1e4, 2) for row in table.rows]
        [12.31, 3.79]
    """
    steps, epochs = several("steps", steps), several("epochs", epochs)
    target_epsilons = several("target_epsilons", target_epsilons)
    if bool(steps) == bool(epochs):
        raise ValueError(f"Give steps or epochs. Received: {steps=}, {epochs=}.")
    sizes = (
        default_batch_sizes(population_size)
        if batch_sizes is None
        else [positive_integer("batch_sizes", size) for size in several("batch_sizes", batch_sizes)]
    )
    if not target_epsilons or not sizes:
        raise ValueError(
            "Give at least one budget and one batch size. "
            f"Received: {target_epsilons=}, {batch_sizes=}."
        )
    rows = []
    wanted = list(itertools.product(target_epsilons, steps or epochs, sizes))
    for epsilon, length, size in wanted:
        count = length if steps else steps_of_epochs(length, size, population_size, sampling)
        found, problem = None, ""
        try:
            found = calibrate(
                target_epsilon=epsilon,
                target_delta=target_delta,
                population_size=population_size,
                batch_size=size,
                steps=count,  # type: ignore[arg-type]  # calibrate checks it.
                accountant=accountant,
                sampling=sampling,
                neighboring_relation=neighboring_relation,
            )
        except UnreachableBudgetError as error:
            problem = str(error)
        shown = f"{length:g} {'steps' if steps else 'epochs'}"
        rows.append(PlanRow(float(epsilon), size, int(count), shown, found, problem))
        if progress is not None:
            progress(len(rows), len(wanted))
    name = accountant_name(accountant)
    return PlanTable(population_size, target_delta, name, tuple(rows))
