"""Checks of what the caller of a step gives: types, dtypes and shapes, which are public.

Values decide nothing here: whether a step runs must not depend on a record.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdp.events.arguments import real_number
from tfdp.gradients.layered_loss import LayeredLoss

_ADVICE = {
    "string": "Encode strings as numbers first.",
    "object": "Convert them to one dtype, and pad what differs in length.",
    "time": "Subtract an origin, and convert to a number of seconds or days.",
}


def check_call(
    loss_fn: Any,
    variables: Any,
    examples: Any,
    mask: Any,
    ids: Any,
    loss_scale: Any,
    weights: Any = None,
) -> None:
    """Refuses arguments of a step that no engine can use; see `tfdp.clipped_gradient_sum`.

    Args:
        loss_fn: As there.
        variables: As there.
        examples: As there.
        mask: As there.
        ids: The microbatch of every example, or None.
        loss_scale: A number, or None.
        weights: The weight of every record, or None.

    Raises:
        TypeError: an argument is of the wrong type or dtype.
        ValueError: a shape or a number is wrong.
    """
    if not (callable(loss_fn) or isinstance(loss_fn, LayeredLoss)):
        raise TypeError(
            f"loss_fn must be a function of a batch of one example. Received: loss_fn={loss_fn!r}."
        )
    for variable in tf.nest.flatten(variables):
        if not isinstance(variable, (tf.Variable, tf.Tensor, keras.Variable)):
            raise TypeError(
                "variables must be a structure of tf.Variable or keras.Variable objects, such as "
                f"model.trainable_variables. Received among them: {variable!r}."
            )
    leaves = [leaf for leaf in tf.nest.flatten(examples) if leaf is not None]
    if not leaves:
        raise ValueError(f"examples holds no tensor. Received: examples={examples!r}.")
    for leaf in leaves:
        as_dense("examples", leaf)
    if mask is not None:
        _check_row("mask", mask, "booleans", lambda dtype: dtype.is_bool or dtype.is_integer)
    if ids is not None:
        _check_row("microbatch_ids", ids, "integers", lambda dtype: dtype.is_integer)
    if weights is not None:
        _check_row(
            "weights", weights, "numbers", lambda dtype: dtype.is_floating or dtype.is_integer
        )
    if loss_scale is not None and not tf.is_tensor(loss_scale):
        real_number("loss_scale", loss_scale, minimum=0, inclusive=False)


def as_dense(name: str, leaf: Any) -> tf.Tensor:
    """Returns a leaf of data as a tensor.

    Raises:
        TypeError: it is ragged or sparse, or its dtype is none of TensorFlow's.
        ValueError: it has no leading axis, or nobody knows how many axes.
    """
    if isinstance(leaf, tf.RaggedTensor):
        raise TypeError(
            f"{name} must be dense. Received a RaggedTensor of shape {leaf.shape}: pad it, for "
            "instance with its to_tensor(), and mask the padding in the model."
        )
    if isinstance(leaf, (tf.SparseTensor, tf.IndexedSlices)):
        raise TypeError(
            f"{name} must be dense. Received a {type(leaf).__name__} of shape {leaf.shape}: "
            "convert it, for instance with tf.sparse.to_dense."
        )
    try:
        tensor = tf.convert_to_tensor(leaf)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"{name} must hold tensors or arrays of numbers. Received {describe_leaf(leaf)}. "
            f"{advice_for(leaf)}"
        ) from error
    if tensor.shape.rank is None:
        raise ValueError(
            f"{name} must have a known number of axes. Received a tensor of unknown rank: say its "
            "shape, for instance with tf.ensure_shape, or output_signature in "
            "tf.data.Dataset.from_generator."
        )
    if tensor.shape.rank == 0:
        raise ValueError(
            f"Every leaf of {name} needs a leading axis of examples. Received a scalar of dtype "
            f"{tensor.dtype.name}."
        )
    return tensor


def describe_leaf(leaf: Any) -> str:
    """Returns type, dtype and shape of a leaf, and none of its values."""
    dtype, shape = getattr(leaf, "dtype", None), getattr(leaf, "shape", None)
    if dtype is None:
        return f"a {type(leaf).__name__}"
    return f"a {type(leaf).__name__} of dtype {dtype} and shape {shape}"


def advice_for(leaf: Any) -> str:
    """Returns what to do about a leaf of a dtype that is not of numbers; "" where that is clear."""
    kind = getattr(getattr(leaf, "dtype", None), "kind", "O")
    kinds = {"S": "string", "U": "string", "T": "string", "O": "object", "M": "time", "m": "time"}
    return _ADVICE.get(kinds.get(kind, ""), "")


def _check_row(name: str, value: Any, what: str, is_right: Any) -> None:
    try:
        tensor = tf.convert_to_tensor(value)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"{name} must hold {what}, one for each example. Received {describe_leaf(value)}."
        ) from error
    if not is_right(tensor.dtype) or tensor.shape.rank not in (1, None):
        raise TypeError(
            f"{name} must hold {what}, one for each example: shape [n]. Received a tensor of dtype "
            f"{tensor.dtype.name} and shape {tensor.shape}."
        )
