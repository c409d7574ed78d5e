"""Where the axis of records is after an operation that puts axes in another order, or adds or takes
away others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# (operation, rank of its operand, values of its other operands, axis of records) to the axis after
# it, or None.
_After = Callable[[tf.Operation, int, Sequence[Any], int], int | None]


def axis_after(
    op: tf.Operation, tensor: tf.Tensor, others: Sequence[np.ndarray | None], axis: int
) -> int | None:
    """Returns which axis of the results of an operation is that of records.

    Args:
        op: The operation.
        tensor: Its operand that holds records.
        others: Values of its other operands; None where one is not known.
        axis: Which axis of `tensor` is that of records.

    Returns:
        The axis; None if the operation may do something along that of records, or is not known.
    """
    after = _AFTER.get(op.type)
    if after is None or tensor.shape.rank is None or any(value is None for value in others):
        return None
    return after(op, tensor.shape.rank, others, axis)


def _transposed(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    return [int(a) % rank for a in others[0]].index(axis)


def _expanded(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    return axis + (others[0].item() % (rank + 1) <= axis)


def _squeezed(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    axes = [a % rank for a in op.get_attr("squeeze_dims")]
    # Without axes it takes away all of length one, which that of records may have.
    return _without(axes, axis) if axes else None


def _unstacked(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    return _without([op.get_attr("axis") % rank], axis)


def _split(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    return None if others[0].item() % rank == axis else axis


def _sliced(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    strides = others[2]
    if axis < len(strides):
        whole = op.get_attr("begin_mask") & op.get_attr("end_mask") & 1 << axis
        if not whole or strides[axis] != 1:
            return None
    shrinks = op.get_attr("shrink_axis_mask")
    return _without([a for a in range(len(strides)) if shrinks & 1 << a], axis)


def _without(axes: Sequence[int], axis: int) -> int | None:
    """Returns which axis one is when others are taken away; None if it is among them."""
    return None if axis in axes else axis - sum(a < axis for a in axes)


_AFTER: dict[str, _After] = {
    "ExpandDims": _expanded,
    "Split": _split,
    "Squeeze": _squeezed,
    "StridedSlice": _sliced,
    "Transpose": _transposed,
    "Unpack": _unstacked,
}
