"""Operations of TensorFlow that are known to treat every record separately.

The first axis of a tensor that holds records has an unknown length, so it is none that a constant
could have. Whatever is not known to keep the records apart is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients.keras_internals import CUSTOM_GRADIENT, is_stateful
from tfdp.gradients.mapping import holds_records, meets_records

# What stands for the number of records in a tensor that holds a shape.
ROWS = "rows"


class MixesError(Exception):
    """An operation is not known to keep the records apart."""


class Kinds:
    """Which tensors of a graph hold records, which hold a shape, and which are constants.

    Every tensor that is none of these is refused.
    """

    def __init__(self) -> None:
        self._records: set[str] = set()
        self._constants: set[str] = set()
        self._shapes: dict[str, list[Any]] = {}

    def add_records(self, tensor: tf.Tensor) -> None:
        """Notes that row i of a tensor is a function of record i."""
        if not holds_records(tensor) or tensor.shape.rank is None:
            raise MixesError(f"{tensor.name} has no axis of records in front")
        self._records.add(tensor.name)

    def add_constant(self, tensor: tf.Tensor) -> None:
        """Notes that a tensor depends neither on records nor on their number."""
        self._constants.add(tensor.name)

    def is_records(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor holds records."""
        return tensor.name in self._records

    def is_shape(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor holds a shape, or lengths of it."""
        return tensor.name in self._shapes

    def is_constant(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor is a constant."""
        return tensor.name in self._constants or tensor.op.type == "Const"

    def add(self, op: tf.Operation) -> None:
        """Finds out what the results of an operation are.

        Raises:
            MixesError: it is not known to keep the records apart.
        """
        inputs = list(op.inputs)
        if CUSTOM_GRADIENT in op.node_def.attr:
            raise MixesError(f"{op.name} has a gradient of its own")
        if op.type in ("Const", "NoOp"):
            return
        if op.type == "Shape" and self.is_records(inputs[0]):
            self._set_shape(op, [ROWS, *inputs[0].shape[1:]])
        elif any(map(self.is_shape, inputs)):
            self._use_of_shape(op, inputs)
        elif any(map(self.is_records, inputs)):
            self._use_of_records(op, inputs)
        elif inputs and all(map(self.is_constant, inputs)) and op.type in _OF_CONSTANTS:
            for tensor in op.outputs:
                self.add_constant(tensor)
        else:
            raise MixesError(f"{op.name} ({op.type}) is not known to keep records apart")

    def _set_shape(self, op: tf.Operation, shape: list[Any]) -> None:
        self._shapes[op.outputs[0].name] = shape

    def _use_of_shape(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        first = self._shapes.get(inputs[0].name)
        if op.type == "StridedSlice" and first is not None:
            begin, end, strides = (tf.get_static_value(t) for t in inputs[1:])
            one = op.get_attr("shrink_axis_mask") == 1 and begin is not None
            plain = not any(op.get_attr(f"{m}_mask") for m in ("begin", "end", "ellipsis"))
            if not (one and plain and len(begin) == 1 and not op.get_attr("new_axis_mask")):
                raise MixesError(f"{op.name} uses the number of records")
            self._set_shape(op, [first[int(begin[0])]])
        elif op.type == "Pack" and op.get_attr("axis") == 0:
            self._set_shape(op, [self._number(t) for t in inputs])
        elif op.type == "Reshape" and self.is_records(inputs[0]) and self.is_shape(inputs[1]):
            self._check_target(op, inputs[1])
            self.add_records(op.outputs[0])
        elif op.type == "BroadcastTo" and self.is_shape(inputs[1]):
            rank = len(self._check_target(op, inputs[1]))
            tensor = inputs[0]
            fits = self.is_records(tensor) and tensor.shape.rank == rank
            if not fits and not (self.is_constant(tensor) and meets_records(tensor, rank)):
                raise MixesError(f"{op.name} moves the axis of records")
            self.add_records(op.outputs[0])
        else:
            raise MixesError(f"{op.name} ({op.type}) uses the number of records")

    def _check_target(self, op: tf.Operation, shape: tf.Tensor) -> list[Any]:
        """Returns a shape that has the number of records in front, and nowhere else: numbers of a
        record that are as many as there are records would tell it how many there are.
        """
        target = self._shapes[shape.name]
        if ROWS not in target[:1] or ROWS in target[1:]:
            raise MixesError(f"{op.name} moves the axis of records")
        return target

    def _number(self, tensor: tf.Tensor) -> Any:
        if tensor.name in self._shapes and len(self._shapes[tensor.name]) == 1:
            return self._shapes[tensor.name][0]
        value = tf.get_static_value(tensor)
        if value is None or value.shape != ():
            raise MixesError(f"{tensor.name} is not a fixed number")
        return int(value)

    def _use_of_records(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        if not all(self.is_records(t) or self.is_constant(t) for t in inputs):
            raise MixesError(f"{op.name} ({op.type}) uses a tensor from elsewhere")
        if is_stateful(op.type):
            raise MixesError(f"{op.name} ({op.type}) does more than compute")
        check = _CHECKS.get(op.type)
        if check is None or not check(op, inputs, self.is_records):
            raise MixesError(f"{op.name} ({op.type}) is not known to keep records apart")
        for tensor in op.outputs:
            self.add_records(tensor)


Check = Callable[[tf.Operation, Sequence[tf.Tensor], Callable[[tf.Tensor], bool]], bool]


def _elementwise(op, inputs, is_records):
    rank = next(t.shape.rank for t in inputs if is_records(t))
    return all(t.shape.rank == rank if is_records(t) else meets_records(t, rank) for t in inputs)


def _constants(inputs, is_records):
    return not any(map(is_records, inputs))


def _axes(tensor, rank):
    axes = tf.get_static_value(tensor)
    if axes is None:
        return [0]
    return [int(axis) % rank for axis in axes.reshape(-1)]


def _reduction(op, inputs, is_records):
    rank = inputs[0].shape.rank
    return _constants(inputs[1:], is_records) and rank > 1 and 0 not in _axes(inputs[1], rank)


def _last_axis(op, inputs, is_records):
    return inputs[0].shape.rank > 1


def _matmul(op, inputs, is_records):
    first, second = inputs
    a, b = first.shape.rank, second.shape.rank
    if is_records(first) and is_records(second):
        return a == b and a > 2
    if is_records(first):
        flipped = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return (a > 2 and meets_records(second, a)) or (a == b == 2 and not flipped)
    return b > 2 and meets_records(first, b)


def _concatenation(op, inputs, is_records):
    *tensors, axis = inputs
    ranks = {t.shape.rank for t in tensors}
    return all(map(is_records, tensors)) and len(ranks) == 1 and 0 not in _axes(axis, ranks.pop())


def _expansion(op, inputs, is_records):
    return not is_records(inputs[1]) and 0 not in _axes(inputs[1], inputs[0].shape.rank + 1)


def _squeeze(op, inputs, is_records):
    axes = op.get_attr("squeeze_dims")
    return bool(axes) and all(axis % inputs[0].shape.rank for axis in axes)


def _transposition(op, inputs, is_records):
    order = tf.get_static_value(inputs[1])
    return not is_records(inputs[1]) and order is not None and int(order[0]) == 0


def _reshape(op, inputs, is_records):
    target, sizes = tf.get_static_value(inputs[1]), inputs[0].shape[1:]
    if is_records(inputs[1]) or target is None or len(target) == 0 or target[0] != -1:
        return False
    # Each record keeps its numbers, so the length that is left open is the number of records.
    return sizes.is_fully_defined() and sizes.num_elements() == int(target[1:].prod()) > 0


def _slice(op, inputs, is_records):
    masks = {m: op.get_attr(f"{m}_mask") for m in ("begin", "end", "ellipsis", "new_axis")}
    shrinks, strides = op.get_attr("shrink_axis_mask"), tf.get_static_value(inputs[3])
    whole = masks["begin"] & 1 and masks["end"] & 1 and not (masks["new_axis"] | shrinks) & 1
    # An ellipsis hides which axis is meant.
    whole = whole and not masks["ellipsis"] and strides is not None and strides[0] == 1
    return bool(whole) and _constants(inputs[1:], is_records)


_ELEMENTWISE = frozenset(
    """
    Abs Add AddV2 Cast Cos DivNoNan Elu Equal Erf Erfc Exp Expm1 Floor Greater
    GreaterEqual Identity Inv IsFinite LeakyRelu Less LessEqual Log Log1p LogicalAnd
    LogicalNot LogicalOr Maximum Minimum Mul Neg NotEqual OnesLike Pow RealDiv
    Reciprocal Relu Relu6 Round Rsqrt SelectV2 Selu Sigmoid Sign Sin Softplus Softsign
    Sqrt Square SquaredDifference StopGradient Sub Tanh ZerosLike
    """.split()
)
_OF_CONSTANTS = frozenset(
    [*_ELEMENTWISE, "ExpandDims", "Fill", "Pack", "Range", "Reshape", "StridedSlice", "Transpose"]
)
_CHECKS: dict[str, Check] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("All", "Any", "Max", "Mean", "Min", "Prod", "Sum"), _reduction),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _last_axis),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"), _matmul),
    "ConcatV2": _concatenation,
    "ExpandDims": _expansion,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "StridedSlice": _slice,
    "Transpose": _transposition,
}
