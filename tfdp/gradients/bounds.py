"""Between which numbers the integers of a tensor lie, whatever the records are."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdp.gradients.static_values import static_value


class Bounds(NamedTuple):
    """The least and the largest integer that there may be."""

    least: int
    largest: int


_Of = Callable[[tf.Tensor], Bounds | None]
# From an operation, which of its results it is, and what gives the bounds of a tensor, to those of
# that result.
_Find = Callable[[tf.Operation, int, _Of], Bounds | None]


def bounds_of(tensor: tf.Tensor) -> Bounds | None:
    """Returns bounds of the integers in a tensor that follow from how it is computed, or None.

    Args:
        tensor: Of any dtype; for one that is no integer, the answer is None.
    """
    found: dict[int, Bounds | None] = {}
    kept: list[tf.Tensor] = []  # So that no other tensor gets the identity of one.

    def of(tensor):
        if id(tensor) not in found:
            kept.append(tensor)
            found[id(tensor)] = _bounds(tensor, of)
        return found[id(tensor)]

    return of(tensor)


def _bounds(tensor: tf.Tensor, of: _Of) -> Bounds | None:
    if not tensor.dtype.is_integer:
        return None
    value = static_value(tensor)
    if value is not None:
        return Bounds(int(value.min()), int(value.max())) if value.size else None
    if not tf.is_symbolic_tensor(tensor):
        return None
    find = _FINDS.get(tensor.op.type)
    found = None if find is None else find(tensor.op, tensor.value_index, of)
    # A number that does not fit begins anew at the other end.
    return found if found is not None and _fits(found, tensor.dtype) else None


def are_places(tensor: tf.Tensor, size: int | None) -> bool:
    """Returns whether integers are known to be places along an axis of a length, 0 .. size - 1."""
    bounds = bounds_of(tensor)
    return None not in (bounds, size) and 0 <= bounds.least and bounds.largest < size


def _fits(bounds: Bounds, dtype: tf.DType) -> bool:
    return dtype.min <= bounds.least and bounds.largest <= dtype.max


def _of_all(tensors: Sequence[tf.Tensor], of: _Of) -> Bounds | None:
    """Returns bounds of what is taken from several tensors."""
    found = [of(tensor) for tensor in tensors]
    if None in found:
        return None
    return Bounds(min(b.least for b in found), max(b.largest for b in found))


def _moved(op, index, of):
    return of(op.inputs[0])


def _split(op, index, of):
    return of(op.inputs[1])


def _packed(op, index, of):
    return _of_all(op.inputs, of)


def _joined(op, index, of):
    return _of_all(op.inputs[:-1], of)


def _cast(op, index, of):
    if op.inputs[0].dtype == tf.bool:
        return Bounds(0, 1)
    # A number that is no integer, such as NaN, may become any.
    return of(op.inputs[0])


def _sum(op, index, of):
    a, b = map(of, op.inputs)
    return None if None in (a, b) else Bounds(a.least + b.least, a.largest + b.largest)


def _difference(op, index, of):
    a, b = map(of, op.inputs)
    return None if None in (a, b) else Bounds(a.least - b.largest, a.largest - b.least)


def _product(op, index, of):
    a, b = map(of, op.inputs)
    if None in (a, b):
        return None
    corners = [x * y for x in a for y in b]
    return Bounds(min(corners), max(corners))


def _quotient(op, index, of):
    number, divisor = map(of, op.inputs)
    if None in (number, divisor) or divisor.least < 1:
        return None
    corners = [x // y for x in number for y in divisor]
    return Bounds(min(corners), max(corners))


def _size(op, index, of):
    a = of(op.inputs[0])
    if a is None:
        return None
    least = 0 if a.least <= 0 <= a.largest else min(map(abs, a))
    return Bounds(least, max(map(abs, a)))


def _negative(op, index, of):
    a = of(op.inputs[0])
    return None if a is None else Bounds(-a.largest, -a.least)


def _remainder(op, index, of):
    divisor = of(op.inputs[1])
    positive = divisor is not None and divisor.least > 0
    return Bounds(0, divisor.largest - 1) if positive else None


def _lower(op, index, of):
    return _of_extremes(op, of, min)


def _higher(op, index, of):
    return _of_extremes(op, of, max)


def _of_extremes(op, of, choose):
    dtype = op.outputs[0].dtype
    whole = Bounds(dtype.min, dtype.max)
    a, b = (whole if bounds is None else bounds for bounds in map(of, op.inputs))
    return Bounds(choose(a.least, b.least), choose(a.largest, b.largest))


def _chosen(op, index, of):
    condition, first, second = op.inputs
    size = _counted_from_the_end(condition, first, second)
    if size is not None:
        bounds = of(second)
        if bounds is not None and -size <= bounds.least and bounds.largest < size:
            return Bounds(0, size - 1)
    return _of_all([first, second], of)


def _counted_from_the_end(condition, first, second):
    """Returns the number that is added to negative integers only; None if it is something else."""
    if condition.op.type != "Less" or first.op.type not in ("Add", "AddV2"):
        return None
    (number, zero), (same, size) = condition.op.inputs, first.op.inputs
    value, size = static_value(zero), static_value(size)
    one_of_each = value is not None and size is not None and value.size == size.size == 1
    if not one_of_each or value.item() != 0 or not number.name == same.name == second.name:
        return None
    return size.item()


def _along_axis(op, index, of):
    axis = static_value(op.inputs[1])
    return None if axis is None else _places(op.inputs[0].shape, axis.item())


def _of_largest(op, index, of):
    return _places(op.inputs[0].shape, -1) if index == 1 else of(op.inputs[0])


def _places(shape, axis):
    size = None if shape.rank is None else shape[axis]
    return Bounds(0, size - 1) if size else None


def _one_hot(op, index, of):
    return _of_all(op.inputs[2:4], of)


def _bucket(op, index, of):
    return Bounds(0, len(op.get_attr("boundaries")))


_FINDS: dict[str, _Find] = {
    **dict.fromkeys(("BroadcastTo", "ExpandDims", "GatherV2", "Identity", "Reshape"), _moved),
    **dict.fromkeys(("ReverseV2", "Roll", "Slice", "SplitV", "Squeeze", "StopGradient"), _moved),
    **dict.fromkeys(("StridedSlice", "Tile", "Transpose", "Unpack"), _moved),
    **dict.fromkeys(("Add", "AddV2"), _sum),
    **dict.fromkeys(("ArgMax", "ArgMin"), _along_axis),
    "Abs": _size,
    "Bucketize": _bucket,
    "Cast": _cast,
    "ConcatV2": _joined,
    "FloorDiv": _quotient,
    "FloorMod": _remainder,
    "Maximum": _higher,
    "Minimum": _lower,
    "Mul": _product,
    "Neg": _negative,
    "OneHot": _one_hot,
    "Pack": _packed,
    "SelectV2": _chosen,
    "Split": _split,
    "Sub": _difference,
    "TopKV2": _of_largest,
}
