"""Where the axis of records is after an operation, wherever it was before."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.gradients.onednn import is_faulty_product
from tfdp.gradients.record_wise_checks import ELEMENTWISE


class Operand(NamedTuple):
    """What an operation is called on.

    Attributes:
        shape: Of a known rank.
        axis: That of records; None for a constant.
        value: Of a constant, where it is known.
    """

    shape: tf.TensorShape
    axis: int | None
    value: np.ndarray | None = None

    @property
    def rank(self) -> int:
        return self.shape.rank

    @property
    def from_the_end(self) -> int | None:
        """The axis of records, counted from the last one, -1."""
        return None if self.axis is None else self.axis - self.rank


_After = Callable[[tf.Operation, list[Operand]], int | None]


def axis_after(op: tf.Operation, operands: list[Operand]) -> int | None:
    """Returns which axis of the results of an operation is that of records.

    Args:
        op: The operation.
        operands: What it is called on, at least one of which holds records.

    Returns:
        The axis; None if the operation may do something along that of records, or is not known.
    """
    after = _AFTER.get(op.type)
    if after is None or any(operand.shape.rank is None for operand in operands):
        return None
    return after(op, operands)


def _of_one(after: Callable[[Any, int, list[Any], int], int | None], place: int = 0) -> _After:
    """Returns the rule of an operation on one tensor, whose other operands must be known."""

    def rule(op, operands):
        tensor, others = operands[place], operands[:place] + operands[place + 1 :]
        if tensor.axis is None or any(other.value is None for other in others):
            return None
        return after(op, tensor.rank, [other.value for other in others], tensor.axis)

    return rule


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
    return None if others[-1].item() % rank == axis else axis


def _along(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    return None if axis in {int(a) % rank for a in np.reshape(others[-1], -1)} else axis


def _over_the_last(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    return None if axis == rank - 1 else axis


def _reduced(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    axes = {int(a) % rank for a in np.reshape(others[0], -1)}
    return axis if op.get_attr("keep_dims") and axis not in axes else _without(axes, axis)


def _sliced(op: Any, rank: int, others: Sequence[Any], axis: int) -> int | None:
    if op.get_attr("ellipsis_mask"):
        return None
    masks = {m: op.get_attr(f"{m}_mask") for m in ("begin", "end", "new_axis", "shrink_axis")}
    before = after = 0
    for i, stride in enumerate(others[2]):
        has = {name: bool(mask >> i & 1) for name, mask in masks.items()}
        if has["new_axis"]:
            after += 1
            continue
        if before == axis:
            whole = has["begin"] and has["end"] and not has["shrink_axis"] and stride == 1
            return after if whole else None
        before += 1
        after += not has["shrink_axis"]
    return axis - before + after


def _without(axes: Any, axis: int) -> int | None:
    """Returns which axis one is when others are taken away; None if it is among them."""
    return None if axis in axes else axis - sum(a < axis for a in axes)


def _met(operands: list[Operand]) -> int | None:
    """Returns the axis, counted from the end, at which operands that are broadcast to each other
    all have the records, or are the same for all of them; None if there is none.
    """
    axes = {operand.from_the_end for operand in operands} - {None}
    if len(axes) != 1:
        return None
    (axis,) = axes
    constants = [operand.shape for operand in operands if operand.axis is None]
    same = all(shape.rank < -axis or shape[axis] == 1 for shape in constants)
    return axis if same else None


def _elementwise(op: Any, operands: list[Operand]) -> int | None:
    axis = _met(operands)
    return None if axis is None else max(operand.rank for operand in operands) + axis


def _bias(op: Any, operands: list[Operand]) -> int | None:
    tensor, bias = operands
    along_last = op.get_attr("data_format") == b"NHWC" and bias.axis is None
    return tensor.axis if along_last and tensor.axis != tensor.rank - 1 else None


def _joined(op: Any, operands: list[Operand]) -> int | None:
    *tensors, along = operands
    places = {(tensor.rank, tensor.axis) for tensor in tensors}
    if len(places) != 1 or along.value is None:
        return None
    ((rank, axis),) = places
    return None if along.value.item() % rank == axis else axis


def _stacked(op: Any, operands: list[Operand]) -> int | None:
    places = {(tensor.rank, tensor.axis) for tensor in operands}
    if len(places) != 1:
        return None
    ((rank, axis),) = places
    return None if axis is None else axis + (op.get_attr("axis") % (rank + 1) <= axis)


def _product(op: Any, operands: list[Operand]) -> int | None:
    """A product of matrices, or of many pairs of them: records are along the pairs, or are rows of
    the left or columns of the right one.
    """
    if is_faulty_product(op):
        return None
    left, right = operands
    prefix = "transpose_" if op.type == "MatMul" else "adj_"
    flips = [op.get_attr(prefix + name) for name in (("a", "b") if op.type == "MatMul" else "xy")]
    rank = max(left.rank, right.rank)
    axis = _met(operands)
    if axis is not None and axis < -2:
        return rank + axis
    rows, columns = (-1 if flips[0] else -2), (-2 if flips[1] else -1)
    if right.axis is None and left.from_the_end == rows:
        return rank - 2
    if left.axis is None and right.from_the_end == columns:
        return rank - 1
    return None


def _summed(op: Any, operands: list[Operand]) -> int | None:
    """Einstein's sum: one letter is that of records, in each operand that holds them and the
    result, and in no constant.
    """
    left, arrow, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left or not arrow or len(terms) != len(operands):
        return None
    pairs = list(zip(terms, operands, strict=True))
    letters = {term[operand.axis] for term, operand in pairs if operand.axis is not None}
    if len(letters) != 1:
        return None
    (letter,) = letters
    counts = [term.count(letter) == (operand.axis is not None) for term, operand in pairs]
    return result.index(letter) if all(counts) and result.count(letter) == 1 else None


_AFTER: dict[str, _After] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("All", "Any", "Max", "Mean", "Min", "Prod", "Sum"), _of_one(_reduced)),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"), _product),
    **dict.fromkeys(("CumulativeLogsumexp", "Cumprod", "Cumsum", "ReverseV2"), _of_one(_along)),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _of_one(_over_the_last)),
    "BiasAdd": _bias,
    "ConcatV2": _joined,
    "Einsum": _summed,
    "ExpandDims": _of_one(_expanded),
    "Pack": _stacked,
    "Roll": _of_one(_along),
    "Split": _of_one(_split, 1),
    "SplitV": _of_one(_split),
    "Squeeze": _of_one(_squeezed),
    "StridedSlice": _of_one(_sliced),
    "Transpose": _of_one(_transposed),
    "Unpack": _of_one(_unstacked),
}
