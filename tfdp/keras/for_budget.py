"""A private optimizer with the noise that a budget asks for."""

import logging
from collections.abc import Sequence
from typing import Any

import keras

from tfdp.accounting.planning.calibration import noise_for_budget
from tfdp.accounting.planning.target_delta import delta_warning
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT, AccountantChoice
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer
from tfdp.keras.microbatching import Microbatching
from tfdp.keras.private_metrics import PrivateMetric, check_metrics, noise_beside
from tfdp.keras.target import Target
from tfdp.ledger import PrivacyLedger
from tfdp.query import GaussianAverageQuery

_logger = logging.getLogger("tfdp")


def for_budget(
    optimizer_class: type[Any],
    inner_optimizer: keras.optimizers.Optimizer,
    l2_norm_clip: float,
    *,
    batch_size: int,
    num_microbatches: int | None = None,
    privacy_unit: str = "example",
    target_epsilon: float,
    target_delta: float,
    population_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    private_metrics: Sequence[PrivateMetric] = (),
    batch_norm_noise_multiplier: float | None = None,
    ledger: PrivacyLedger | None = None,
    **kwargs: Any,
) -> Any:
    """Returns a `DPOptimizer` with the least noise that keeps a run within (epsilon, delta).

    The query is `GaussianAverageQuery(l2_norm_clip, z * f, denominator)`. Here z is what
    `tfdp.noise_for_budget` finds, and the denominator is the expected number of records. f is 2
    where one example of a microbatch of several moves a sum by twice the clip, else 1.

    Guarantees:
        A run with these numbers ends within the budget by the accountant. The numbers are a
        plan: what was really done is in the ledger. `fit` logs a warning where it goes beyond the
        budget, and `tfdp.keras.PrivacyBudget` among its callbacks stops it before.

    Args:
        optimizer_class: The class of the optimizer; this is its class method.
        inner_optimizer: Any Keras optimizer.
        l2_norm_clip: Bound on the gradient norm of a record.
        target_epsilon: The budget.
        target_delta: Between 0 and 1; choose it well below 1 / population_size.
        population_size: Examples in the data set; public. With privacy_unit="microbatch" a plan is
            about as many units as `fit` makes of them.
        batch_size: (Expected) examples in a batch, as given to `fit`.
        epochs: As given to `fit`.
        steps: In place of `epochs`.
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.
        sampling: "poisson" (what `fit` does by default), "fixed_size", "shuffled" or
            "random_allocation".
        neighboring_relation: By default that of the sampling policy in `tfdp.sampling`.
        num_microbatches: As in `DPOptimizer`.
        privacy_unit: As in `DPOptimizer`.
        private_metrics: As in `DPOptimizer`. What they cost is taken from the budget, so that
            gradients get more noise.
        batch_norm_noise_multiplier: As in `DPOptimizer`; it is taken from the budget, too.
        ledger: As in `DPOptimizer`. What it has cost so far is taken from the budget, too.
        **kwargs: As in `DPOptimizer`.

    Raises:
        UnreachableBudgetError: no noise keeps the run within the budget; says what would.
        ValueError: an argument is out of range, or the private metrics leave nothing of the budget.
        TypeError: an argument is of the wrong type.
    """
    batch_size = positive_integer("batch_size", batch_size)
    population_size = positive_integer("population_size", population_size)
    microbatching = Microbatching(num_microbatches, privacy_unit)
    microbatching.set_batch_size(batch_size)
    units, units_of_batch = population_size, batch_size
    if privacy_unit == "microbatch":
        # As `fit` cuts the data: the last unit may be smaller.
        size = batch_size // microbatching.num_microbatches
        units, units_of_batch = -(-population_size // size), microbatching.num_microbatches
    noise_multiplier = noise_for_budget(
        target_epsilon,
        target_delta,
        population_size=units,
        batch_size=units_of_batch,
        epochs=epochs,
        steps=steps,
        accountant=accountant,
        sampling=sampling,
        neighboring_relation=neighboring_relation,
        ledger=ledger,
    )
    metrics = check_metrics(private_metrics)
    besides = [metric.noise_multiplier for metric in metrics]
    if batch_norm_noise_multiplier is not None:
        besides.append(batch_norm_noise_multiplier)
    query = GaussianAverageQuery(
        l2_norm_clip,
        noise_multiplier=noise_beside(noise_multiplier, microbatching.sensitivity_factor, besides),
        denominator=batch_size if num_microbatches is None else num_microbatches,
    )
    if (problem := delta_warning(target_delta, units)) is not None:
        _logger.warning("%s.", problem)
    optimizer = optimizer_class(
        inner_optimizer,
        query,
        num_microbatches,
        privacy_unit=privacy_unit,
        private_metrics=metrics,
        batch_norm_noise_multiplier=batch_norm_noise_multiplier,
        ledger=ledger,
        **kwargs,
    )
    optimizer.target = Target(target_epsilon, target_delta, accountant)
    return optimizer
