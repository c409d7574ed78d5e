"""The gradient of one example's loss."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients.layered_loss import LayeredLoss
from tfdp.gradients.record_scope import RecordScope, Seeds, metrics_of

LossFn = Callable[[Any], Any]


def one_number(loss: Any, loss_scale: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss of one example as a scalar, and the same times `loss_scale`.

    Raises:
        ValueError: it is not one floating-point number.
    """
    try:
        loss = tf.convert_to_tensor(loss)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"loss_fn must return the loss of one example, one number. Received: {loss!r}."
        ) from error
    if not loss.dtype.is_floating:
        raise ValueError(
            "The loss of one example must be a floating-point number. Received a loss of dtype "
            f"{loss.dtype.name}."
        )
    if loss.shape.num_elements() != 1:
        raise ValueError(
            "The loss of one example must be one number. Received a loss of shape "
            f"{loss.shape}. Reduce it, for instance with tf.reduce_mean."
        )
    loss = tf.reshape(loss, [])
    return loss, loss if loss_scale == 1.0 else loss * tf.cast(loss_scale, loss.dtype)


def example_gradient(
    loss_fn: LossFn | LayeredLoss,
    variables: Sequence[Any],
    example: Any,
    seeds: tf.Tensor | None,
    has_aux: bool,
    loss_scale: float,
) -> tuple[tf.Tensor, Any, list[tf.Tensor]]:
    """Returns (loss, aux, dense gradients) of a batch of one example.

    Args:
        loss_fn: The loss.
        variables: What it is differentiated with respect to.
        example: Structure of tensors [1, ...].
        seeds: int64 [1, 2], from `draw_seeds`; None where the loss draws no random numbers.
        has_aux: Whether aux is wanted.
        loss_scale: As in `clipped_gradient_sum`.

    Raises:
        ValueError: the loss is not one number, or does not depend on one of the variables.
        SideEffectError: it assigns to a variable.
    """
    # A keras.Variable holds the tf.Variable that a tape can watch as its value.
    sources = [v if isinstance(v, (tf.Variable, tf.Tensor)) else v.value for v in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        with RecordScope(Seeds(of_record(seeds)), metrics=metrics_of(loss_fn)) as scope:
            if isinstance(loss_fn, LayeredLoss):
                loss, aux = loss_fn.loss(example, loss_fn.forward(example, scope), scope)
            else:
                outcome = loss_fn(example)
                loss, aux = _pair(outcome) if has_aux else (outcome, ())
        loss, scaled = one_number(loss, loss_scale)
    gradients = tape.gradient(scaled, sources)
    missing = [_name(v) for v, g in zip(variables, gradients, strict=True) if g is None]
    if missing:
        raise ValueError(
            f"The loss does not depend on these variables: {', '.join(missing)}. A variable "
            "without a gradient would get noise and nothing else. Set `trainable = False` on it "
            "or its layer, or leave it out."
        )
    gradients = [tf.convert_to_tensor(g) for g in gradients]
    for source, gradient in zip(sources, gradients, strict=True):
        gradient.set_shape(source.shape)  # TensorFlow may have lost it where a length is open.
    if loss_scale != 1.0:
        gradients = [g / tf.cast(loss_scale, g.dtype) for g in gradients]
    return loss, aux if has_aux else (), gradients


def of_record(seeds: tf.Tensor | None) -> tf.Tensor | None:
    """Returns the numbers of a batch of one, [1, 2], as those of its record, [2]."""
    return None if seeds is None else seeds[0]


def _pair(outcome: Any) -> tuple[Any, Any]:
    if not isinstance(outcome, (tuple, list)) or len(outcome) != 2:
        raise ValueError(
            "With has_aux=True loss_fn must return a pair, (loss, aux). Received: "
            f"{type(outcome).__name__}."
        )
    return outcome[0], outcome[1]


def _name(variable: Any) -> str:
    return getattr(variable, "path", None) or getattr(variable, "name", None) or repr(variable)
