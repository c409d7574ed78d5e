"""A function of one record, with every place that the record's integers name checked, with no
numbers that a kernel does not take, and with all results of convolutions written.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients import indices, kernels
from tfdp.gradients.keras_internals import COLOCATION, CUSTOM_GRADIENT, function_in
from tfdp.gradients.onednn import axis_of_one_channel, of_two_channels

RecordFn = Callable[[list[tf.Tensor]], Any]

# Operations whose results depend on the shapes of their inputs only, not on the numbers in them.
_OF_SHAPES = (
    *("Shape", "ShapeN", "Size", "Rank", "VariableShape", "ZerosLike", "OnesLike"),
    *("TensorListElementShape", "TensorListLength"),
)
_FOR_GRADIENTS = ("OptionalFromValue", "OptionalNone", "TensorListPopBack", "TensorListPushBack")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_CONDITIONALS = ("If", "StatelessIf")
_CASES = ("Case", "StatelessCase")


def with_checks(fn: RecordFn, specs: Sequence[tf.TensorSpec]) -> RecordFn:
    """Returns a function that gives the same as `fn` where all places that the record's integers
    name exist, and where not NaN in the place of what is read from there or written to there. So
    does what kernels return for numbers that would end the run.
    Nothing that it gives was left in the memory by others (`onednn`).

    Args:
        fn: Takes a list of tensors, and returns a structure of tensors. It is traced.
        specs: What the tensors of one record are.

    Raises:
        RecordDependentShapeError: (when the result is called) the shape of a result depends on the
            record's integers.
        RefusedKernelError: (likewise) a kernel could end the run for some numbers of the record.
    """
    traced = tf.function(lambda *record: fn(list(record)), autograph=False)
    return checked(traced.get_concrete_function(*specs)) or fn


def checked(traced: Any) -> RecordFn | None:
    """Returns what `with_checks` does, of a concrete function of a record's tensors; None where
    there is nothing to check.
    """
    return _checked(traced, _Dependent(traced.graph, _leaves(traced.graph)))


def safe_update(traced: Any) -> RecordFn | None:
    """Returns what `checked` does, of a concrete function that updates variables from tensors of
    records. What it captures may follow records, too, as what variables hold from earlier calls
    does, and so may how many numbers it selects.
    """
    return _checked(traced, _Dependent(traced.graph, traced.graph.inputs, selects=True))


def _checked(traced: Any, dependent: "_Dependent") -> RecordFn | None:
    """Returns a concrete function of a list of tensors with checks of what depends on some."""
    graph = traced.graph
    if not any(map(dependent.needs_check, graph.get_operations())):
        return None

    def call(record):
        values = {t.name: value for t, value in zip(_leaves(graph), record, strict=True)}
        values |= {internal.name: external for external, internal in graph.captures}
        outputs = _emit(graph, values, dependent)
        return tf.nest.pack_sequence_as(traced.structured_outputs, outputs, expand_composites=True)

    return call


def checked_outputs(traced: Any) -> list[tf.Tensor]:
    """Adds what `with_checks` does to the graph of a concrete function of a record's tensors.

    Only what has a check, and what follows from it, is made anew. The graph must not run: the
    operations that have no check yet stay in it.

    Returns:
        Of each of the graph's outputs what takes its place.
    """
    graph = traced.graph
    dependent = _Dependent(graph, _leaves(graph))
    values: dict[str, tf.Tensor] = {}
    made: dict[str, tf.Operation] = {}
    with graph.as_default():
        for op in _in_order(t.op for t in graph.outputs):
            follows = any(t.name in values for t in op.inputs)
            follows = follows or any(c.name in made for c in op.control_inputs)
            if follows or dependent.needs_check(op):
                with tf.control_dependencies([made.get(c.name, c) for c in op.control_inputs]):
                    _make_anew(op, values, made, dependent)
    return [values.get(t.name, t) for t in graph.outputs]


def has_own_gradients(graph: Any) -> bool:
    """Returns whether a graph, or a function that it calls, has a `tf.custom_gradient`."""
    return any(
        CUSTOM_GRADIENT in op.node_def.attr or any(map(has_own_gradients, _functions(op)))
        for op in graph.get_operations()
    )


def has_unsafe_gradients(graph: Any) -> bool:
    """Returns whether a graph, or a function that it calls, has an operation whose gradient is
    safe only where the graph that holds the gradient is checked.
    """
    return any(
        op.type in kernels.WITH_UNSAFE_GRADIENTS or any(map(has_unsafe_gradients, _functions(op)))
        for op in graph.get_operations()
    )


class _Dependent:
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
        self._called: dict[str, list[_Dependent]] = {}
        for op in _in_order(graph.get_operations()):
            if op.type in _OF_SHAPES:
                continue
            graphs = _functions(op)
            depend = [self.on([t]) for t in op.inputs]
            outputs = self._enter(op, graphs, depend) if graphs else [any(depend)] * len(op.outputs)
            self._names |= {t.name for t, is_one in zip(op.outputs, outputs, strict=True) if is_one}

    def on(self, tensors: Iterable[tf.Tensor]) -> bool:
        """Returns whether any of these tensors depends on the leaves."""
        return any(t.name in self._names for t in tensors)

    def called(self, op: tf.Operation) -> "list[_Dependent]":
        """Returns the same of the functions that an operation calls."""
        return self._called.get(op.name, [])

    def needs_check(self, op: tf.Operation) -> bool:
        """Returns whether an operation has to be made anew."""
        return axis_of_one_channel(op) is not None or self.takes_places(op)

    def takes_places(self, op: tf.Operation) -> bool:
        """Returns whether an operation, or one that it calls, takes such tensors as places or
        sizes, or does not take all of their values.
        """
        return (
            self._checks(op)
            or self.size_of(op) is not None
            or any(part._has_checks for part in self.called(op))
        )

    def size_of(self, op: tf.Operation) -> str | None:
        """Returns the name of a size, or of something else that a kernel needs to be in a range,
        that depends on the leaves and has no check; None where there is none.
        """
        if self.selects and op.type in indices.SELECTIONS:
            return None
        if op.type in _LOOPS and self._may_not_end(op):
            return "number of iterations"
        check = kernels.check_of(op)
        known = () if check is None else check.places
        for place, name in indices.sizes_of(op).items():
            if place not in known and self.on([op.inputs[place]]):
                return name
        return None

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
        if op.type in _LOOPS:
            return self._loop(op, graphs, depend)
        if op.type in _CALLS:
            arguments = depend
        elif op.type in (*_CONDITIONALS, *_CASES):
            arguments = depend[1:]
        else:  # What it calls them with is not known.
            parts = [_Dependent(g, g.inputs if any(depend) else (), self.selects) for g in graphs]
            self._called[op.name] = parts
            return [any(depend)] * len(op.outputs)
        parts = [self._inside(graph, arguments) for graph in graphs]
        self._called[op.name] = parts
        decides = op.type not in _CALLS and depend[0]
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

    def _inside(self, graph: Any, depend: list[bool]) -> "_Dependent":
        leaves = [t for t, is_one in zip(graph.inputs, depend, strict=True) if is_one]
        return _Dependent(graph, leaves, self.selects)

    def _outputs(self) -> list[bool]:
        return [self.on([t]) for t in self._graph.outputs]


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


def _factors(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns what must be true where a tensor is."""
    tensor = _source(tensor)
    if tensor.op.type != "LogicalAnd":
        return [tensor]
    return [factor for t in tensor.op.inputs for factor in _factors(t)]


def _leaves(graph: Any) -> list[tf.Tensor]:
    """Returns the arguments of a concrete function, in its graph."""
    return graph.inputs[: len(graph.inputs) - len(graph.captures)]


def _functions(op: tf.Operation) -> list[Any]:
    """Returns the graphs of the functions that an operation calls."""
    names = [
        name
        for attr in op.op_def.attr
        if attr.type in ("func", "list(func)")
        for name in _names(op.get_attr(attr.name))
    ]
    return [function_in(op.graph, name) for name in names]


def _names(value: Any) -> list[str]:
    return [f.name for f in (value if isinstance(value, list) else [value])]


def _emit(graph: Any, values: dict[str, tf.Tensor], dependent: _Dependent) -> list[tf.Tensor]:
    """Makes the operations of a graph anew in the current one, with checks.

    Args:
        graph: Where the operations are.
        values: What takes the places of its inputs, by their names.
        dependent: Which of its tensors depend on a record.

    Returns:
        What takes the places of its outputs.
    """
    made: dict[str, tf.Operation] = {}
    for op in _in_order([*(t.op for t in graph.outputs), *graph.control_outputs]):
        if op.outputs and op.outputs[0].name in values:
            continue
        with tf.control_dependencies([made[c.name] for c in op.control_inputs if c.name in made]):
            _make_anew(op, values, made, dependent)
    with tf.control_dependencies([made[o.name] for o in graph.control_outputs if o.name in made]):
        return [tf.identity(values[t.name]) for t in graph.outputs]


def _make_anew(
    op: tf.Operation,
    values: dict[str, tf.Tensor],
    made: dict[str, tf.Operation],
    dependent: _Dependent,
) -> None:
    """Makes an operation in the current graph, and notes what takes the places of its outputs and
    of itself.
    """
    outputs = _outputs(op, [values.get(t.name, t) for t in op.inputs], dependent)
    made[op.name] = outputs[0].op if outputs else tf.no_op()
    for old, new in zip(op.outputs, outputs, strict=True):
        if new.dtype not in (tf.resource, tf.variant):
            new.set_shape(old.shape)
        values[old.name] = new


def _in_order(ops: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns operations and all that they need, each after what it needs.

    The order in which they were made is another one: the gradient of a loop gives it more inputs.
    """
    done: dict[str, tf.Operation] = {}
    pending = list(ops)[::-1]
    while pending:
        op = pending[-1]
        before = [*(t.op for t in op.inputs), *op.control_inputs]
        missing = [needed for needed in before if needed.name not in done]
        if missing and op.name not in done:
            pending += missing
        else:
            done[pending.pop().name] = op
    return list(done.values())


def _outputs(op: tf.Operation, inputs: list[tf.Tensor], dependent: _Dependent) -> list[tf.Tensor]:
    """Makes one operation anew, on inputs in the current graph, with checks where it needs them."""
    size = dependent.size_of(op)
    if size is not None:
        raise indices.RecordDependentShapeError(
            f"{op.type} ({op.name}) takes its {size!r} from numbers of a record. For some of them "
            "it could end the run, exhaust the memory or not come back, which would tell of the "
            "record. Use sizes and axes that are fixed, tf.while_loop(..., maximum_iterations=n), "
            "tf.sequence_mask(..., maxlen=n), and in the place of a selection "
            "tf.where(mask, x, 0.0)."
        )
    check = kernels.check_of(op)
    if check is not None and dependent.takes_places(op):
        return indices.checked(check, op, inputs, lambda safe: _create(op, safe))
    axis = axis_of_one_channel(op)
    if axis is not None:
        return _create(op, of_two_channels(*inputs, axis))
    if not _functions(op):
        return _create(op, inputs)

    called = list(zip(_functions(op), dependent.called(op), strict=True))

    def run(i, arguments):
        graph, inside = called[i]
        values = {t.name: value for t, value in zip(graph.inputs, arguments, strict=True)}
        return _emit(graph, values, inside)

    if op.type in _CALLS:
        return run(0, inputs)
    if op.type in _LOOPS:
        return list(
            tf.while_loop(
                lambda *state: tf.reshape(run(0, state)[0], []),
                lambda *state: run(1, state),
                inputs,
                shape_invariants=[t.shape for t in op.outputs],
                parallel_iterations=op.get_attr("parallel_iterations"),
            )
        )
    if op.type in _CONDITIONALS:
        return list(tf.cond(inputs[0], lambda: run(0, inputs[1:]), lambda: run(1, inputs[1:])))
    if op.type in _CASES:
        branches = [lambda i=i: run(i, inputs[1:]) for i in range(len(called))]
        return list(tf.switch_case(inputs[0], branches))
    raise indices.RecordDependentShapeError(
        f"{op.type} ({op.name}) calls a function in a way that tfdp does not know, so that what "
        "integers of a record do in it cannot be checked."
    )


def _create(op: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Makes an operation anew in the current graph."""
    attributes = {
        name: value for name, value in op.node_def.attr.items() if not name.startswith(COLOCATION)
    }
    arguments = op.op_def.input_arg
    if not any(argument.number_attr or argument.type_list_attr for argument in arguments):
        # A check may have made an integer input wider than it was, so the types of the new inputs
        # count.
        for argument, tensor in zip(arguments, inputs, strict=True):
            if argument.type_attr:
                dtype = tensor.dtype.as_datatype_enum
                attributes[argument.type_attr] = tf.compat.v1.AttrValue(type=dtype)
    graph = tf.compat.v1.get_default_graph()
    dtypes = [t.dtype for t in op.outputs]
    return list(graph.create_op(op.type, inputs, dtypes, attrs=attributes).outputs)
