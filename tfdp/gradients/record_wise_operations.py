"""Operations of TensorFlow that are known to treat every record separately.

The first axis of a tensor that holds records has an unknown length, so it is none that a constant
could have: one of unknown length is refused, as is whatever is not known to keep the records apart.
"""

import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.gradients import keras_internals
from tfdp.gradients.draws import DRAWS
from tfdp.gradients.graphs import CALLS, LOOPS
from tfdp.gradients.keras_internals import (
    CUSTOM_GRADIENT,
    HOST_OPERATIONS,
    gradient_in_tensorflow,
    is_stateful,
)
from tfdp.gradients.lengths import LENGTHS_AFTER, Rows, has_rows, lengths_after
from tfdp.gradients.mapping import holds_records, meets_records
from tfdp.gradients.moved_axes import Operand, axis_after
from tfdp.gradients.record_wise_checks import CHECKS
from tfdp.gradients.static_values import note_lengths, static_value, value_from_outside

# Functions of TensorFlow that have gradients of their own, elementwise ones.
_ELEMENTWISE_GRADIENTS = ("tensorflow.python.ops.nn_impl.swish.<locals>.swish_impl.<locals>.grad",)
# Operations that make records of a shape, and which operand that is.
_TO_RECORDS = {"BroadcastTo": 1, "Fill": 0, "Slice": 2, "Tile": 1}

# Where code is that no user has written.
_LIBRARIES = tuple(f"{pathlib.Path(file).parent}{os.sep}" for file in (keras.__file__, tf.__file__))
_OURS = f"{pathlib.Path(__file__).parent}{os.sep}"
_PASSES_ON = keras_internals.__file__  # What a block's code makes goes through `changing_inputs`.


class MixesError(Exception):
    """An operation is not known to keep the records apart."""


class Kinds:
    """Which tensors of a graph hold records, which hold a shape, and which are constants. In a
    merged tensor, every record has the same number of rows, one after the other. In a moved one,
    the axis of records is not the first.

    Every tensor that is none of these is refused.
    """

    def __init__(self) -> None:
        self._records: set[str] = set()
        self._constants: set[str] = set()
        self._shapes: dict[str, list[Any]] = {}
        self._merged: dict[str, int] = {}  # How many rows a record has.
        self._moved: dict[str, int] = {}  # Which axis is that of records.
        self._noted: set[str] = set()  # Of which more lengths are known than TensorFlow knew.

    def add_records(self, tensor: tf.Tensor) -> None:
        """Notes that row i of a tensor is a function of record i."""
        if not holds_records(tensor) or tensor.shape.rank is None:
            raise MixesError(f"{tensor.name} has no axis of records in front")
        self._records.add(tensor.name)

    def add_constant(self, tensor: tf.Tensor) -> None:
        """Notes that a tensor depends neither on records nor on their number."""
        self._constants.add(tensor.name)

    def add_rows(self, tensor: tf.Tensor, rows: int) -> None:
        """Notes that so many rows of a tensor, one after the other, are functions of one record."""
        if rows == 1:
            self.add_records(tensor)
        elif not holds_records(tensor) or tensor.shape.rank is None:
            raise MixesError(f"{tensor.name} has no axis of rows of records in front")
        else:
            self._merged[tensor.name] = rows

    def is_records(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor holds records."""
        return tf.is_symbolic_tensor(tensor) and tensor.name in self._records

    def rows_of(self, tensor: tf.Tensor) -> int | None:
        """Returns how many rows of a tensor a record has, and None if it holds no records."""
        if not tf.is_symbolic_tensor(tensor):
            return None
        return 1 if self.is_records(tensor) else self._merged.get(tensor.name)

    def is_moved(self, tensor: tf.Tensor) -> bool:
        """Returns whether the axis of records is not the first one of a tensor."""
        return tf.is_symbolic_tensor(tensor) and tensor.name in self._moved

    def is_shape(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor holds a shape, or lengths of it."""
        return tensor.name in self._shapes

    def lengths_for_one(self, tensor: tf.Tensor) -> np.ndarray | None:
        """Returns the lengths that a tensor holds where there is one record; None if it holds none,
        or not all of them are known.
        """
        lengths = [
            number.times if isinstance(number, Rows) else number
            for number in self._shapes.get(tensor.name, [None])
        ]
        if None in lengths:
            return None
        values = np.array(lengths, tensor.dtype.as_numpy_dtype)
        return values[0] if tensor.shape.rank == 0 else values

    def is_constant(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor is a constant."""
        if value_from_outside(tensor) is not None:
            return True
        return tensor.name in self._constants or tensor.op.type == "Const"

    def add(self, op: tf.Operation, drawn: bool = False) -> None:
        """Finds out what the results of an operation are.

        Args:
            op: The operation.
            drawn: Whether it draws from a seed of its own, which nobody knows, a number of a given
                distribution for every place of a shape.

        Raises:
            MixesError: it is not known to keep the records apart.
        """
        inputs = list(op.inputs)
        if op.type in ("Const", "NoOp"):
            return
        if op.type == "Assert" and all(map(self.is_constant, inputs)):
            return
        if any(tensor.name in self._noted for tensor in inputs) and note_lengths(op):
            self._noted |= {tensor.name for tensor in op.outputs}
        if CUSTOM_GRADIENT in op.node_def.attr:
            self._own_gradient(op, inputs)
        elif drawn:
            self._drawn(op, inputs)
        elif op.type in DRAWS:
            raise MixesError(f"{_named(op)} draws from a seed that is not known to be its own")
        elif op.type == "Shape" and self.is_records(inputs[0]):
            self._set_shape(op.outputs[0], [Rows(1), *inputs[0].shape[1:]])
        elif op.type == "Shape" and inputs[0].name in self._merged:
            lengths = [Rows(self._merged[inputs[0].name]), *inputs[0].shape[1:]]
            self._set_shape(op.outputs[0], lengths)
        elif any(map(self.is_shape, inputs)):
            self._use_of_shape(op, inputs)
        elif op.type == "Reshape" and self._has_records(inputs[0]):
            self._reshape(op, inputs[0], static_value(inputs[1]))
        elif self._stacks(op, inputs):
            self._moved[op.outputs[0].name] = 1
        elif self._moves(op, inputs):
            self._move(op, inputs)
        elif any(self.rows_of(tensor) is not None for tensor in inputs):
            self._use_of_records(op, inputs)
        elif self._makes_a_constant(op, inputs):
            if any(map(holds_records, op.outputs)) and note_lengths(op, but_for=0):
                self._noted |= {tensor.name for tensor in op.outputs}
            for tensor in op.outputs:
                if holds_records(tensor):
                    # Its rows could be as many as there are records, and each would meet another.
                    raise MixesError(f"{_named(op)} makes a constant of an unknown length")
                self.add_constant(tensor)
        elif op.type == "Placeholder":
            where = _named(op).removeprefix("Placeholder ")
            if op.outputs[0].dtype == tf.resource:
                raise MixesError(f"it reads a tf.Variable, and no weight of Keras {where}")
            raise MixesError(f"it uses a weight of another layer, or another such tensor {where}")
        else:
            raise MixesError(_unknown(op))

    def _makes_a_constant(self, op: tf.Operation, inputs: list[tf.Tensor]) -> bool:
        # What is drawn for all records at once is none of a record's own.
        pure = not is_stateful(op.type) and not op.type.startswith("Stateless")
        pure = pure and op.type not in HOST_OPERATIONS
        if op.outputs and value_from_outside(op.outputs[0]) is not None:
            return True
        return pure and bool(inputs) and all(map(self.is_constant, inputs))

    def _drawn(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        # What is drawn for all records at once is none of a record's own.
        shape, _, _, *others = inputs
        if not self.is_shape(shape) or not all(map(self.is_constant, others)):
            raise MixesError(f"{_named(op)} does not draw for each record")
        self._check_target(op, shape)
        self.add_records(op.outputs[0])

    def _own_gradient(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        known = op.type == "IdentityN" and gradient_in_tensorflow(op) in _ELEMENTWISE_GRADIENTS
        rows = [self.rows_of(t) for t in inputs]
        if not known or not all(
            n is not None or self.is_constant(t) for n, t in zip(rows, inputs, strict=True)
        ):
            raise MixesError(f"{_named(op)} has a gradient of its own")
        for number, after in zip(rows, op.outputs, strict=True):
            if number is None:
                self.add_constant(after)
            else:
                self.add_rows(after, number)

    def _set_shape(self, tensor: tf.Tensor, shape: list[Any]) -> None:
        if has_rows(shape) or static_value(tensor) is None:
            self._shapes[tensor.name] = shape
        else:
            self.add_constant(tensor)

    def _use_of_shape(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        to_records = _TO_RECORDS.get(op.type)
        if op.type == "Reshape" and self.is_shape(inputs[1]):
            self._reshape(op, inputs[0], self._shapes[inputs[1].name])
        elif op.type == "Tile" and self._repeats(inputs):
            self._moved[op.outputs[0].name] = self._shapes[inputs[1].name].index(Rows(1))
        elif to_records is not None and self.is_shape(inputs[to_records]):
            self._make_records(op, inputs, self._check_target(op, inputs[to_records]))
        elif op.type == "StridedSlice" and self.is_records(inputs[0]):
            self._cut(op, inputs)
        elif op.type in ("Split", "SplitV", "Unpack"):
            numbers = self._list(inputs[1 if op.type == "Split" else 0])
            for part in op.outputs:  # As long as TensorFlow says.
                if part.shape.num_elements() is None:
                    raise MixesError(f"{_named(op)} uses the number of records")
                taken, numbers = (
                    numbers[: part.shape.num_elements()],
                    numbers[part.shape.num_elements() :],
                )
                self._set_shape(part, taken)
        else:
            known = op.type in LENGTHS_AFTER
            lengths = lengths_after(op, [self._list(t) for t in inputs]) if known else None
            if lengths is None:
                raise MixesError(f"{_named(op)} uses the number of records")
            self._set_shape(op.outputs[0], lengths)

    def _repeats(self, inputs: list[tf.Tensor]) -> bool:
        """Returns whether every record gets a copy of a constant, along an axis behind the first,
        as `tf.repeat` makes them.
        """
        tensor, target = inputs[0], self._shapes.get(inputs[1].name, [])
        if not self.is_constant(tensor) or target.count(Rows(1)) != 1:
            return False
        place = target.index(Rows(1))
        others = [n for n in target if n != Rows(1)]
        return 0 < place < len(tensor.shape) and tensor.shape[place] == 1 and not has_rows(others)

    def _reshape(self, op: tf.Operation, tensor: tf.Tensor, target: Any) -> None:
        """Notes what a tensor of records is after a `Reshape`: a record's numbers stay together."""
        rows, sizes = self.rows_of(tensor), tensor.shape[1:]
        if self.is_moved(tensor):
            axis = self._moved[tensor.name]
            if any(n != 1 for n in tensor.shape[:axis]):
                self._reshape_around(op, tensor.shape, axis, target)
                return
            rows, sizes = 1, tensor.shape[axis + 1 :]
        if rows is None or target is None or len(target) == 0 or has_rows(target[1:]):
            raise MixesError(f"{_named(op)} moves the axis of records")
        if isinstance(target[0], Rows):
            times = target[0].times
        elif target[0] == -1 and sizes.is_fully_defined() and min(target[1:], default=1) > 0:
            # The length that is left open is that of the records, times what is merged with them.
            times, rest = divmod(rows * sizes.num_elements(), math.prod(map(int, target[1:])))
            times = 0 if rest else times
        else:
            times = 0
        if times > 0 and sizes.is_fully_defined():
            self._note_open_length(op.outputs[0], target[1:], rows * sizes.num_elements(), times)
        if times == 1:
            self.add_records(op.outputs[0])
        elif times > 1 and holds_records(op.outputs[0]):
            self.add_rows(op.outputs[0], times)
        else:
            raise MixesError(f"{_named(op)} moves the axis of records")

    def _reshape_around(
        self, op: tf.Operation, shape: tf.TensorShape, axis: int, target: Any
    ) -> None:
        """Notes what a moved tensor is after a `Reshape` of what is before and behind the axis of
        records.
        """
        target = [] if target is None else list(target)
        places = [i for i, length in enumerate(target) if length == -1 or isinstance(length, Rows)]
        sides = [[*shape[:axis]], [*shape[axis + 1 :]]]
        if len(places) == 1 and target[places[0]] in (-1, Rows(1)):
            (place,) = places
            found = target[:place], target[place + 1 :]
            known = not any(None in side for side in sides)
            if known and all(map(_as_many, sides, found)):
                op.outputs[0].set_shape([*found[0], None, *found[1]])
                self._moved[op.outputs[0].name] = place
                return
        raise MixesError(f"{_named(op)} moves the axis of records")

    def _note_open_length(
        self, tensor: tf.Tensor, lengths: Sequence[Any], numbers: int, rows: int
    ) -> None:
        """Notes the lengths of a row. TensorFlow knows none of these where one is left open, -1, or
        follows from others, since it does not know the number of records.

        Args:
            tensor: What was reshaped.
            lengths: Of its rows.
            numbers: How many numbers a record has.
            rows: How many rows.
        """
        rest = rows * math.prod(n or 0 for n in lengths if n != -1)
        if not tensor.shape[1:].is_fully_defined() and rest > 0:
            tensor.set_shape([None, *(numbers // rest if n == -1 else n for n in lengths)])
            self._noted.add(tensor.name)

    def _stacks(self, op: tf.Operation, inputs: list[tf.Tensor]) -> bool:
        """Returns whether an operation puts an axis in front of that of records, along which are
        its operands.
        """
        if op.type != "Pack" or not all(map(self.is_records, inputs)):
            return False
        return op.get_attr("axis") % (inputs[0].shape.rank + 1) == 0

    def _moves(self, op: tf.Operation, inputs: list[tf.Tensor]) -> bool:
        """Returns whether the axis of records is not the first one before an operation, or may not
        be after it.
        """
        if any(tensor.name in self._moved for tensor in inputs):
            return True
        if op.type == "Einsum":  # One that is seen to have it in front everywhere moves nothing.
            in_front = any(map(self.is_records, inputs))
            return in_front and not CHECKS["Einsum"](op, inputs, self.is_records)
        return op.type in ("ExpandDims", "Transpose") and self.rows_of(inputs[0]) is not None

    def _move(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        """Notes which axis of the results of an operation is that of records."""
        rows = {self.rows_of(tensor) or 1 for tensor in inputs if not self.is_constant(tensor)}
        place = None
        if len(rows) == 1 and all(self._is_known(tensor) for tensor in inputs):
            place = axis_after(op, [self._operand(tensor) for tensor in inputs])
        if place is None or (place > 0 and rows != {1}):
            raise MixesError(_unknown(op))
        for result in op.outputs:
            if place == 0:
                self.add_rows(result, *rows)
            elif result.shape.rank is None or result.shape[place] is not None:
                raise MixesError(f"{result.name} has no axis of records")
            else:
                self._moved[result.name] = place

    def _is_known(self, tensor: tf.Tensor) -> bool:
        return self._has_records(tensor) or self.is_constant(tensor)

    def _has_records(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor holds records, or rows of them, along any axis."""
        return self.rows_of(tensor) is not None or self.is_moved(tensor)

    def _operand(self, tensor: tf.Tensor) -> Operand:
        axis = self._moved.get(tensor.name)
        if self.rows_of(tensor) is not None:
            axis = 0
        return Operand(tensor.shape, axis, static_value(tensor) if axis is None else None)

    def _make_records(self, op: tf.Operation, inputs: list[tf.Tensor], target: list[Any]) -> None:
        """Notes that an operation makes records of the shape `target`."""
        tensor = inputs[1] if op.type == "Fill" else inputs[0]
        begins = True
        if op.type == "Slice":
            begin = static_value(inputs[1])
            begins = begin is not None and begin[0] == 0
        if self.is_records(tensor):
            fits = tensor.shape.rank == len(target)
        else:
            # Every record gets the same: what lies along the axis of records is repeated.
            fits = self.is_constant(tensor) and op.type in ("BroadcastTo", "Fill", "Tile")
            fits = fits and meets_records(tensor, len(target))
            fits = fits and (op.type != "Tile" or tensor.shape.rank == len(target))
        if not fits or not begins or (op.type == "Tile" and self.is_records(tensor)):
            raise MixesError(f"{_named(op)} moves the axis of records")
        self.add_records(op.outputs[0])

    def _cut(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        """Notes what a slice of records is whose end is told by their shape."""
        begin, end, strides = (self._list(t) for t in inputs[1:])
        masks = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
        whole = (begin[0], end[0], strides[0]) == (0, Rows(1), 1) and not has_rows(end[1:])
        if not whole or any(op.get_attr(f"{mask}_mask") for mask in masks):
            raise MixesError(f"{_named(op)} moves the axis of records")
        # TensorFlow knows no length of it, since it does not know the first end.
        sizes = inputs[0].shape
        cuts = list(map(slice, begin[1:], end[1:], strides[1:]))
        if has_rows([*begin, *strides]) or not sizes[1:].is_fully_defined():
            raise MixesError(f"{_named(op)} moves the axis of records")
        along = zip(cuts, sizes[1:], strict=False)
        lengths = [len(range(*cut.indices(size))) for cut, size in along]
        op.outputs[0].set_shape([None, *lengths, *sizes[1 + len(cuts) :]])
        self._noted.add(op.outputs[0].name)
        self.add_records(op.outputs[0])

    def _list(self, tensor: tf.Tensor) -> list[Any]:
        """Returns lengths, or numbers that are known, as a list."""
        if tensor.name in self._shapes:
            return self._shapes[tensor.name]
        value = static_value(tensor)
        if value is None or value.ndim > 1 or value.dtype.kind != "i":
            raise MixesError(f"{tensor.name} is not a fixed number")
        return [int(number) for number in value.reshape(-1)]

    def _check_target(self, op: tf.Operation, shape: tf.Tensor) -> list[Any]:
        """Returns a shape that has the number of records in front, and nowhere else: numbers of a
        record that are as many as there are records would tell it how many there are.
        """
        target = self._shapes[shape.name]
        if target[:1] != [Rows(1)] or has_rows(target[1:]):
            raise MixesError(f"{_named(op)} moves the axis of records")
        return target

    def _use_of_records(self, op: tf.Operation, inputs: list[tf.Tensor]) -> None:
        rows = {self.rows_of(t) for t in inputs} - {None}
        known = all(self.rows_of(t) is not None or self.is_constant(t) for t in inputs)
        if len(rows) != 1 or not known:
            raise MixesError(f"{_named(op)} uses a tensor from elsewhere")
        if is_stateful(op.type):
            raise MixesError(f"{_named(op)} does more than compute")
        check = CHECKS.get(op.type)
        if check is None or not check(op, inputs, lambda t: self.rows_of(t) is not None):
            reads = op.type == "GatherV2" and self.rows_of(inputs[1]) is not None
            is_open = reads and None in inputs[0].shape[1:]
            why = " reads along an axis of a length that is not known, and" if is_open else ""
            if op.type in CALLS:
                why = " calls a function that XLA compiles, or that was traced before, and"
            raise MixesError(_unknown(op, why))
        for tensor in op.outputs:
            self.add_rows(tensor, *rows)


def _as_many(lengths: Sequence[int], others: Sequence[int]) -> bool:
    return math.prod(lengths) == math.prod(map(int, others)) > 0


def _unknown(op: tf.Operation, why: str = "") -> str:
    if op.type in LOOPS or op.type.startswith("TensorList"):
        why = " belongs to a loop or array of TensorFlow, and"
    return f"{_named(op)}{why} is not known to keep records apart"


def _named(op: tf.Operation) -> str:
    """Returns what an operation is called where its code is looked for: its kind and its line, or
    its name where no code of a user's own made it.
    """
    for frame in reversed(op.traceback or ()):
        if frame.filename == _PASSES_ON:
            continue
        if frame.filename.startswith(_OURS):  # What is further out has called for gradients.
            break
        if not frame.filename.startswith(_LIBRARIES):
            return f"{op.type} ({pathlib.Path(frame.filename).name}, line {frame.lineno})"
    return f"{op.type} ({op.name})"
