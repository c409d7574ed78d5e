"""Optimizers as compositions: those of TensorFlow Privacy by their names."""

from typing import Any

import keras

from tfdp.events.arguments import says_what_to_write
from tfdp.keras.optimizer import DPOptimizer
from tfdp.query import (
    GaussianAverageQuery,
    NormalizedQuery,
    PeriodicRoundRestartIndicator,
    RestartQuery,
    TreeResidualSumQuery,
)
from tfdp.query.dp_query import DPQuery

_BY_NAME = (
    "Give l2_norm_clip, noise_multiplier and num_microbatches, and by name denominator=... and "
    "what the Keras optimizer takes, such as learning_rate=0.1."
)


def _compose(
    inner_class: type[keras.optimizers.Optimizer],
    l2_norm_clip: float,
    noise_multiplier: float,
    num_microbatches: int | None,
    denominator: float | None,
    inner_arguments: dict[str, Any],
) -> DPOptimizer:
    query = GaussianAverageQuery(
        l2_norm_clip,
        noise_multiplier=noise_multiplier,
        denominator=_denominator(num_microbatches, denominator),
    )
    return _wrapped(inner_class, query, num_microbatches, inner_arguments)


def _denominator(num_microbatches: int | None, denominator: float | None) -> float:
    found = num_microbatches if denominator is None else denominator
    if found is None:
        raise TypeError(
            "Give num_microbatches (the batch size, for one record an example) or "
            "denominator=<expected batch size>: the average is over a fixed, public number."
        )
    return found


def _wrapped(
    inner_class: type[keras.optimizers.Optimizer],
    query: DPQuery,
    num_microbatches: int | None,
    inner_arguments: dict[str, Any],
) -> DPOptimizer:
    # In TensorFlow Privacy 1 means that gradients are not accumulated. Keras refuses it.
    if inner_arguments.get("gradient_accumulation_steps") == 1:
        inner_arguments = {
            k: v for k, v in inner_arguments.items() if k != "gradient_accumulation_steps"
        }
    if "unconnected_gradients_to_zero" in inner_arguments:
        raise TypeError(
            "unconnected_gradients_to_zero is no argument here: a variable without a gradient "
            "would get noise and nothing else. Leave the argument out, and freeze such a layer: "
            "layer.trainable = False."
        )
    return DPOptimizer(inner_class(**inner_arguments), query, num_microbatches)


@says_what_to_write(_BY_NAME)
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
        TypeError: neither `num_microbatches` nor `denominator` is given, or
            `unconnected_gradients_to_zero` is.
    """
    return _compose(
        keras.optimizers.SGD, l2_norm_clip, noise_multiplier, num_microbatches, denominator, kwargs
    )


@says_what_to_write(_BY_NAME)
def DPKerasAdamOptimizer(  # noqa: N802
    l2_norm_clip: float,
    noise_multiplier: float,
    num_microbatches: int | None = None,
    *,
    denominator: float | None = None,
    **kwargs: Any,
) -> DPOptimizer:
    """Returns a `DPOptimizer` around `keras.optimizers.Adam`.

    Args:
        l2_norm_clip: As in `DPKerasSGDOptimizer`.
        noise_multiplier: Likewise.
        num_microbatches: Likewise.
        denominator: Likewise.
        **kwargs: For the Keras optimizer.
    """
    return _compose(
        keras.optimizers.Adam, l2_norm_clip, noise_multiplier, num_microbatches, denominator, kwargs
    )


@says_what_to_write(_BY_NAME)
def DPKerasAdagradOptimizer(  # noqa: N802
    l2_norm_clip: float,
    noise_multiplier: float,
    num_microbatches: int | None = None,
    *,
    denominator: float | None = None,
    **kwargs: Any,
) -> DPOptimizer:
    """Returns a `DPOptimizer` around `keras.optimizers.Adagrad`.

    Args:
        l2_norm_clip: As in `DPKerasSGDOptimizer`.
        noise_multiplier: Likewise.
        num_microbatches: Likewise.
        denominator: Likewise.
        **kwargs: For the Keras optimizer.
    """
    return _compose(
        keras.optimizers.Adagrad,
        l2_norm_clip,
        noise_multiplier,
        num_microbatches,
        denominator,
        kwargs,
    )


@says_what_to_write(
    "Write tfdp.keras.DPFTRLTreeAggregationOptimizer(l2_norm_clip, noise_multiplier, model, "
    "num_microbatches, num_steps=..., period=..., learning_rate=...): period is the number of "
    "steps between two in which one record may be, such as the steps of an epoch in a fixed order."
)
def DPFTRLTreeAggregationOptimizer(  # noqa: N802
    l2_norm_clip: float,
    noise_multiplier: float,
    var_list_or_model: Any,
    num_microbatches: int | None = None,
    gradient_accumulation_steps: int = 1,
    restart_period: int | None = None,
    restart_warmup: int | None = None,
    noise_seed: int | None = None,
    *,
    period: int,
    num_steps: int | None = None,
    denominator: float | None = None,
    **kwargs: Any,
) -> DPOptimizer:
    """Returns DP-FTRL: a `DPOptimizer` around `keras.optimizers.SGD` with noise of a binary tree.

    Other noise is better at the same price: give a `DPOptimizer` a `CorrelatedGaussianSumQuery`
    with `tfdp.factorizations.optimal_buffered`.

    Args:
        l2_norm_clip: As in `DPKerasSGDOptimizer`.
        noise_multiplier: Standard deviation of the noise of a node, divided by `l2_norm_clip`.
        var_list_or_model: A built model, or the list of variables whose gradients are records.
        num_microbatches: As in `DPKerasSGDOptimizer`.
        gradient_accumulation_steps: For the Keras optimizer; 1 is none.
        restart_period: A new tree begins after so many steps.
        restart_warmup: The first one after so many.
        noise_seed: As in `TreeResidualSumQuery.build_l2_gaussian_query`: for tests alone.
        period: Steps between two in which one record may be: of an epoch in a fixed order.
        num_steps: Of a tree at most; by default `restart_period`. One of the two must be given,
            because the price of a tree depends on its size.
        denominator: As in `DPKerasSGDOptimizer`.
        **kwargs: For the Keras optimizer.

    Raises:
        TypeError: an argument is missing or of the wrong type.
        ValueError: it is out of range, or a warmup has no period.

    References:
        Kairouz et al. 2021, arXiv:2103.00039.
    """
    if restart_warmup is not None and restart_period is None:
        raise ValueError(f"restart_warmup needs restart_period. Received: {restart_warmup=}.")
    if num_steps is None and restart_period is None:
        raise TypeError("Give num_steps or restart_period: a tree costs what its size costs.")
    tree = TreeResidualSumQuery.build_l2_gaussian_query(
        l2_norm_clip,
        noise_multiplier,
        getattr(var_list_or_model, "trainable_variables", var_list_or_model),
        noise_seed,
        num_steps=restart_period if num_steps is None else num_steps,
        period=period,
    )
    query: DPQuery = tree
    if restart_period is not None:
        query = RestartQuery(tree, PeriodicRoundRestartIndicator(restart_period, restart_warmup))
    average = NormalizedQuery(query, _denominator(num_microbatches, denominator))
    kwargs["gradient_accumulation_steps"] = gradient_accumulation_steps
    return _wrapped(keras.optimizers.SGD, average, num_microbatches, kwargs)
