"""Optimizers as compositions: those of TensorFlow Privacy by their names."""

from typing import Any

import keras

from tfdp.keras.optimizer import DPOptimizer
from tfdp.query import GaussianAverageQuery


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
    # In TensorFlow Privacy 1 means that gradients are not accumulated. Keras refuses it.
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
