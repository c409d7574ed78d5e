"""Optimizers as compositions: for a budget, and those of TensorFlow Privacy by their names."""

from typing import Any

import keras

from tfdp.accounting.planning.calibration import noise_for_budget
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT, AccountantChoice
from tfdp.events import NeighboringRelation
from tfdp.keras.microbatching import Microbatching
from tfdp.keras.optimizer import DPOptimizer
from tfdp.query import GaussianAverageQuery


def optimizer_for_budget(
    inner_optimizer: keras.optimizers.Optimizer,
    l2_norm_clip: float,
    *,
    target_epsilon: float,
    target_delta: float,
    population_size: int,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    num_microbatches: int | None = None,
    privacy_unit: str = "example",
    **kwargs: Any,
) -> DPOptimizer:
    """Returns a `DPOptimizer` with the least noise that keeps a run within (epsilon, delta).

    The query is `GaussianAverageQuery(l2_norm_clip, z * f, denominator)`: z is what
    `tfdp.noise_for_budget` finds, f is 2 where one example of a microbatch of several moves a sum
    by twice the clip, else 1, and the denominator is the expected number of records.

    Guarantees:
        A run with these numbers ends within the budget by the accountant. The numbers are a plan:
        what was really done is in the ledger, and `tfdp.keras.PrivacyBudget` in `fit` stops a run
        that does more.

    Args:
        inner_optimizer: Any Keras optimizer.
        l2_norm_clip: Bound on the gradient norm of a record.
        target_epsilon: The budget.
        target_delta: Between 0 and 1; choose it well below 1 / population_size.
        population_size: Examples in the data set; public.
        batch_size: (Expected) examples in a batch, as given to `fit`.
        epochs: As given to `fit`.
        steps: In place of `epochs`.
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.
        sampling: "poisson" (what `fit` does by default), "fixed_size" or "shuffled".
        neighboring_relation: By default that of the sampling policy in `tfdp.sampling`.
        num_microbatches: As in `DPOptimizer`.
        privacy_unit: As in `DPOptimizer`.
        **kwargs: As in `DPOptimizer`.

    Raises:
        UnreachableBudgetError: no noise keeps the run within the budget; says what would.
        ValueError: an argument is out of range.
        TypeError: an argument is of the wrong type.
    """
    noise_multiplier = noise_for_budget(
        target_epsilon,
        target_delta,
        population_size=population_size,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        accountant=accountant,
        sampling=sampling,
        neighboring_relation=neighboring_relation,
    )
    microbatching = Microbatching(num_microbatches, privacy_unit)
    microbatching.set_batch_size(batch_size)
    query = GaussianAverageQuery(
        l2_norm_clip,
        noise_multiplier=noise_multiplier * microbatching.sensitivity_factor,
        denominator=batch_size if num_microbatches is None else num_microbatches,
    )
    return DPOptimizer(
        inner_optimizer, query, num_microbatches, privacy_unit=privacy_unit, **kwargs
    )


def _compose(
    inner_class: type[keras.optimizers.Optimizer],
    l2_norm_clip: float,
    noise_multiplier: float,
    num_microbatches: int | None,
    denominator: float | None,
    inner_arguments: dict[str, Any],
) -> DPOptimizer:
    denominator = num_microbatches if denominator is None else denominator
    if denominator is None:
        raise TypeError(
            "Give num_microbatches (the batch size, for one record an example) or "
            "denominator=<expected batch size>: the average is over a fixed, public number."
        )
    query = GaussianAverageQuery(
        l2_norm_clip, noise_multiplier=noise_multiplier, denominator=denominator
    )
    # TensorFlow Privacy's way to say that there is no accumulation, which Keras refuses.
    if inner_arguments.get("gradient_accumulation_steps") == 1:
        inner_arguments = {
            k: v for k, v in inner_arguments.items() if k != "gradient_accumulation_steps"
        }
    return DPOptimizer(inner_class(**inner_arguments), query, num_microbatches)


def DPKerasSGDOptimizer(  # noqa: N802 - the name that users of TensorFlow Privacy know
    l2_norm_clip: float,
    noise_multiplier: float,
    num_microbatches: int | None = None,
    *,
    denominator: float | None = None,
    **kwargs: Any,
) -> DPOptimizer:
    """Returns `DPOptimizer(keras.optimizers.SGD(**kwargs), GaussianAverageQuery(...),
    num_microbatches)`.

    Args:
        l2_norm_clip: Bound on the gradient norm of a record.
        noise_multiplier: Noise on the sum, divided by `l2_norm_clip`.
        num_microbatches: As in `DPOptimizer`. With as many as examples in a batch, each example is
            a record.
        denominator: What the noised sum is divided by; by default `num_microbatches`.
        **kwargs: For the Keras optimizer.

    Raises:
        TypeError: neither `num_microbatches` nor `denominator` is given.
    """
    return _compose(
        keras.optimizers.SGD, l2_norm_clip, noise_multiplier, num_microbatches, denominator, kwargs
    )


def DPKerasAdamOptimizer(  # noqa: N802
    l2_norm_clip: float,
    noise_multiplier: float,
    num_microbatches: int | None = None,
    *,
    denominator: float | None = None,
    **kwargs: Any,
) -> DPOptimizer:
    """Returns a `DPOptimizer` around `keras.optimizers.Adam`; see `DPKerasSGDOptimizer`."""
    return _compose(
        keras.optimizers.Adam, l2_norm_clip, noise_multiplier, num_microbatches, denominator, kwargs
    )


def DPKerasAdagradOptimizer(  # noqa: N802
    l2_norm_clip: float,
    noise_multiplier: float,
    num_microbatches: int | None = None,
    *,
    denominator: float | None = None,
    **kwargs: Any,
) -> DPOptimizer:
    """Returns a `DPOptimizer` around `keras.optimizers.Adagrad`; see `DPKerasSGDOptimizer`."""
    return _compose(
        keras.optimizers.Adagrad,
        l2_norm_clip,
        noise_multiplier,
        num_microbatches,
        denominator,
        kwargs,
    )
