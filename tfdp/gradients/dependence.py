"""Which numbers of a graph depend on the numbers of a record, and which operations take these as
places or sizes.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients import indices, kernels
from tfdp.gradients.graphs import CALLS, CASES, CONDITIONALS, LOOPS, functions_called, in_order
from tfdp.gradients.onednn import axis_of_one_channel, is_faulty_product
from tfdp.gradients.static_values import static_value, values_of
from tfdp.gradients.total_kernels import TOTAL

# Operations whose results depend on the shapes of their inputs only, not on the numbers in them.
_OF_SHAPES = (
    *("Shape", "ShapeN", "Size", "Rank", "VariableShape", "ZerosLike", "OnesLike"),
    *("TensorListElementShape", "TensorListLength"),
)
_FOR_GRADIENTS = ("OptionalFromValue", "OptionalNone", "TensorListPopBack", "TensorListPushBack")


def which_reach(
    graph: Any, tensors: Sequence[tf.Tensor]
) -> Callable[[tf.Tensor | tf.IndexedSlices], list[int]]:
    """Returns a function from a tensor of a graph to the numbers of those that it depends on. What
    calls of functions return may seem to depend on more.

    Args:
        graph: Of all these tensors.
        tensors: Of the graph.
    """
    bits: dict[str, int] = {}
    for number, tensor in enumerate(tensors):
        bits[tensor.name] = bits.get(tensor.name, 0) | 1 << number
    for op in in_order(graph.get_operations()):
        found = 0
        for tensor in op.inputs:
            found |= bits.get(tensor.name, 0)
        if found:
            bits.update((tensor.name, bits.get(tensor.name, 0) | found) for tensor in op.outputs)

    def numbers(tensor):
        values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
        found = bits.get(values.name, 0)
        return [number for number in range(len(tensors)) if found >> number & 1]

    return numbers


class Dependent:
    """Which tensors of a graph, and of the functions that it calls, depend on the numbers in some
    of its inputs.

    Attributes:
        selects: Whether how many numbers there are in a result may depend on them, too.

    Args:
        graph: Of a function.
        leaves: The inputs.
        selects: See above.
    """

    def __init__(self, graph: Any, leaves: Iterable[tf.Tensor], selects: bool = False):
        self.selects = selects
        self._graph = graph
        self._names = {leaf.name for leaf in leaves}
        self._called: dict[str, list[Dependent]] = {}
        for op in in_order(graph.get_operations()):
            if op.type in _OF_SHAPES:
                continue
            graphs = functions_called(op)
            depend = [self.on([t]) for t in op.inputs]
            outputs = self._enter(op, graphs, depend) if graphs else [any(depend)] * len(op.outputs)
            # TensorFlow adds results to a function when it differentiates another call of it.
            outputs = outputs[: len(op.outputs)]
            self._names |= {t.name for t, is_one in zip(op.outputs, outputs, strict=True) if is_one}

    def on(self, tensors: Iterable[tf.Tensor]) -> bool:
        """Returns whether any of these tensors depends on the leaves."""
        return any(t.name in self._names for t in tensors)

    def called(self, op: tf.Operation) -> "list[Dependent]":
        """Returns the same of the functions that an operation calls."""
        return self._called.get(op.name, [])

    def differs_by_record(self) -> tf.Operation | None:
        """Returns an operation that keeps something of records for its gradient, and may take one
        branch or another, or of which records may take other numbers of rounds; None where there is
        none.
        """
        for op in self._graph.get_operations():
            if any(t.dtype == tf.variant for t in op.outputs):
                if op.type in LOOPS and self.called(op)[0]._outputs()[0]:
                    return op
                decides = op.type in (*CONDITIONALS, *CASES) and known_branch(op) is None
                if decides and self.on(op.inputs):
                    return op
            for part in self.called(op):
                inside = part.differs_by_record()
                if inside is not None:
                    return inside
        return None

    def needs_check(self, op: tf.Operation) -> bool:
        """Returns whether an operation has to be made anew."""
        return (
            axis_of_one_channel(op) is not None
            or is_faulty_product(op)
            or self.takes_places(op)
            or self.added_along(op) is not None
            or is_of_another_rank(op)
        )

    def added_along(self, op: tf.Operation) -> tuple[int, int] | None:
        """Returns along which axis `keras.ops.add` adds numbers of a record that it takes for a
        bias, as a batch of one has no other axis, and along which it adds those of a larger batch.
        None of any other operation.
        """
        if op.type != "BiasAdd" or op.inputs[1].op.type != "Squeeze" or not self.on(op.inputs[1:]):
            return None
        rank, shape = op.inputs[0].shape.rank, op.inputs[1].op.inputs[0].shape
        axis = next(i for i, size in enumerate(shape) if size != 1) - shape.rank
        return (1 - rank if op.get_attr("data_format") == b"NCHW" else -1), axis

    def takes_places(self, op: tf.Operation) -> bool:
        """Returns whether an operation, or one that it calls, takes such tensors as places or
        sizes, or is not known to take all of their values.
        """
        return (
            self._checks(op)
            or self.size_of(op) is not None
            or self.is_unknown(op)
            or any(part._has_checks for part in self.called(op))
        )

    def size_of(self, op: tf.Operation) -> str | None:
        """Returns the name of a size, or of something else that a kernel needs to be in a range,
        that depends on the leaves and has no check; None where there is none.
        """
        if self.selects and op.type in indices.SELECTIONS:
            return None
        if op.type in LOOPS and self._may_not_end(op):
            return "number of iterations"
        if self._decides_about_sizes(op):
            return "size of a result"
        check = kernels.check_of(op)
        known = () if check is None else check.places
        for place, name in indices.sizes_of(op).items():
            if place not in known and self.on([op.inputs[place]]):
                return name
        return None

    def is_unknown(self, op: tf.Operation) -> bool:
        """Returns whether an operation takes such tensors, and nobody knows what it does for some
        of their values.
        """
        known = op.type in TOTAL or kernels.check_of(op) is not None or op.name in self._called
        known = known or (self.selects and op.type in indices.SELECTIONS)
        return not known and self.on(op.inputs)

    @functools.cached_property
    def _has_checks(self) -> bool:
        return any(map(self.needs_check, self._graph.get_operations()))

    def _may_not_end(self, op: tf.Operation) -> bool:
        """Returns whether a loop goes on for as long as the leaves say, without a bound."""
        cond, body = self.called(op)
        goes_on = cond._graph.outputs[0]
        if not cond.on([goes_on]):
            return False
        places = {t.name: i for i, t in enumerate(cond._graph.inputs)}
        for test in _factors(goes_on):
            if test.op.type == "Less" and test.op.inputs[0].name in places:
                counter, bound = test.op.inputs
                place = places[counter.name]
                # TensorFlow's gradient of a loop counts to what that loop has counted.
                if (place, places.get(bound.name)) == (0, 2):
                    return False
                if not self.on([op.inputs[place]]) and not cond.on([bound]) and body._counts(place):
                    return False
        return True

    def _decides_about_sizes(self, op: tf.Operation) -> bool:
        """Returns whether results have sizes that follow which branch runs, or how often a loop
        does, and these follow the leaves.
        """
        parts = self.called(op)
        if op.type in LOOPS:
            follows = parts[0]._outputs()[0]
            pairs = zip(op.inputs, op.outputs, strict=True)
            differ = any(_is_wider(after.shape, before.shape) for before, after in pairs)
        elif op.type in (*CONDITIONALS, *CASES):
            follows = self.on(op.inputs[:1])
            results = zip(*(part._graph.outputs for part in parts), strict=True)
            differ = any(
                not first.shape.is_compatible_with(t.shape)
                for first, *rest in results
                for t in rest
            )
        else:
            return False
        arrays = [t for t in parts[-1]._graph.outputs if t.dtype == tf.variant]
        kept = not all(map(_is_for_a_gradient, arrays))
        return follows and (differ or (kept and any(part._makes_longer for part in parts)))

    @functools.cached_property
    def _makes_longer(self) -> bool:
        """Whether an array is written to that grows where a place is beyond its end."""
        for op in self._graph.get_operations():
            if op.type == "TensorListSetItem" and op.get_attr("resize_if_index_out_of_bounds"):
                return True
            if any(part._makes_longer for part in self.called(op)):
                return True
        return False

    def _counts(self, i: int) -> bool:
        """Returns whether the body of a loop adds a number to its input i that is positive."""
        step = _source(self._graph.outputs[i]).op
        if step.type not in ("Add", "AddV2") or step.inputs[0].name != self._graph.inputs[i].name:
            return False
        by = tf.get_static_value(step.inputs[1])
        return by is not None and by > 0

    def _checks(self, op: tf.Operation) -> bool:
        check = kernels.check_of(op)
        places = () if check is None else check.places
        return self.on(op.inputs[i] for i in places if i < len(op.inputs))

    def _enter(self, op: tf.Operation, graphs: list[Any], depend: list[bool]) -> list[bool]:
        """Notes what depends on the leaves in functions that an operation calls.

        Args:
            op: The operation.
            graphs: Of the functions.
            depend: Which of the operation's inputs do.

        Returns:
            Which of its outputs do. What a branch or a round of a loop keeps for its gradient is
            read only where that branch or round is one that ran.
        """
        if op.type in LOOPS:
            return self._loop(op, graphs, depend)
        if op.type in CALLS:
            arguments = depend
        elif op.type in (*CONDITIONALS, *CASES):
            arguments = depend[1:]
        else:  # What it calls them with is not known.
            parts = [Dependent(g, g.inputs if any(depend) else (), self.selects) for g in graphs]
            self._called[op.name] = parts
            return [any(depend)] * len(op.outputs)
        parts = [self._inside(graph, arguments) for graph in graphs]
        self._called[op.name] = parts
        decides = op.type not in CALLS and depend[0]
        flags = zip(*(part._outputs() for part in parts), strict=True)
        results = zip(*(graph.outputs for graph in graphs), strict=True)
        return [
            any(of_branches) or decides and not all(map(_is_for_a_gradient, outputs))
            for of_branches, outputs in zip(flags, results, strict=True)
        ]

    def _loop(self, op: tf.Operation, graphs: list[Any], depend: list[bool]) -> list[bool]:
        while True:
            cond, body = parts = [self._inside(graph, depend) for graph in graphs]
            after = body._outputs()
            if cond._outputs()[0]:  # How often it runs depends on the leaves.
                state = zip(after, graphs[1].inputs, graphs[1].outputs, strict=True)
                after = [
                    d or _source(o).name != i.name and not _is_for_a_gradient(o)
                    for d, i, o in state
                ]
            after = [a or before for a, before in zip(after, depend, strict=True)]
            if after == depend:
                self._called[op.name] = parts
                return depend
            depend = after

    def _inside(self, graph: Any, depend: list[bool]) -> "Dependent":
        leaves = [t for t, is_one in zip(graph.inputs, depend, strict=True) if is_one]
        return Dependent(graph, leaves, self.selects)

    def _outputs(self) -> list[bool]:
        return [self.on([t]) for t in self._graph.outputs]


def known_branch(op: tf.Operation) -> int | None:
    """Returns the number of the branch that an operation takes, where it is known beforehand."""
    number = op.inputs[0]
    chosen = static_value(number)
    if chosen is None:  # A comparison of lengths.
        found = values_of(number.op, [static_value(t) for t in number.op.inputs])
        chosen = None if found is None else found[number.value_index]
    if chosen is None or chosen.shape:
        return None
    if op.type in CONDITIONALS:
        return 0 if chosen else 1
    last = len(functions_called(op)) - 1
    return int(chosen) if 0 <= chosen < last else last


def is_of_another_rank(op: tf.Operation) -> bool:
    """Returns whether an operation is the gradient of a bias along the first axis, of anything but
    images: TensorFlow vectorizes it as if it were of images.
    """
    if op.type != "BiasAddGrad" or op.get_attr("data_format") != b"NCHW":
        return False
    return op.inputs[0].shape.rank not in (None, 4)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor that has the same numbers as one."""
    while tensor.op.type in ("Identity", "Reshape"):
        tensor = tensor.op.inputs[0]
    return tensor


def _is_for_a_gradient(tensor: tf.Tensor) -> bool:
    """Returns whether TensorFlow keeps a tensor of a branch, or of rounds of a loop, for its
    gradient: arrays that a program makes are written to by places.
    """
    return _source(tensor).op.type in _FOR_GRADIENTS


def _is_wider(shape: tf.TensorShape, other: tf.TensorShape) -> bool:
    """Returns whether a shape leaves open what another one says."""
    if shape.rank is None or other.rank is None:
        return other.rank is not None
    return any(a is None and b is not None for a, b in zip(shape, other, strict=True))


def _factors(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns what must be true where a tensor is."""
    tensor = _source(tensor)
    if tensor.op.type != "LogicalAnd":
        return [tensor]
    return [factor for t in tensor.op.inputs for factor in _factors(t)]
