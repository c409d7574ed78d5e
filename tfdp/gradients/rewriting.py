"""A function of one record, with every place that the record's integers name checked, with no
numbers that a kernel does not take, and with all results of convolutions written.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients import indices, kernels
from tfdp.gradients.keras_internals import COLOCATION, CUSTOM_GRADIENT, function_in
from tfdp.gradients.onednn import axis_of_one_channel, of_two_channels

RecordFn = Callable[[list[tf.Tensor]], Any]

# Operations whose results depend on the shapes of their inputs only, not on the numbers in them.
_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "VariableShape", "ZerosLike", "OnesLike")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_CONDITIONALS = ("If", "StatelessIf")
_CASES = ("Case", "StatelessCase")


def needs_checks(graph: Any, leaves: Iterable[tf.Tensor]) -> bool:
    """Returns whether something that depends on leaves is used as a place in a graph, or by a
    kernel that does not take all numbers, or results of a convolution in it may be left unwritten.
    """
    return any(map(_Dependent(graph, leaves).needs_check, graph.get_operations()))


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
    graph = traced.graph
    inputs = _leaves(graph)
    if not needs_checks(graph, inputs):
        return None

    def call(record):
        values = {t.name: value for t, value in zip(inputs, record, strict=True)}
        values |= {internal.name: external for external, internal in graph.captures}
        outputs = _emit(graph, values, _Dependent(graph, inputs))
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
    """Which tensors of a graph depend on the numbers in some of its inputs.

    What is inside of loops, branches and calls counts as depending on all that goes in.
    """

    def __init__(self, graph: Any, leaves: Iterable[tf.Tensor]):
        self._names = {leaf.name for leaf in leaves}
        for op in _in_order(graph.get_operations()):
            if op.type not in _OF_SHAPES and self.on(op.inputs):
                self._names |= {t.name for t in op.outputs}

    def on(self, tensors: Iterable[tf.Tensor]) -> bool:
        """Returns whether any of these tensors depends on the leaves."""
        return any(t.name in self._names for t in tensors)

    def needs_check(self, op: tf.Operation) -> bool:
        """Returns whether an operation has to be made anew."""
        return axis_of_one_channel(op) is not None or self.takes_places(op)

    def takes_places(self, op: tf.Operation) -> bool:
        """Returns whether an operation, or one that it calls, takes such tensors as places, or
        does not take all of their values.
        """
        check = kernels.check_of(op)
        if check is not None:
            return self.on(op.inputs[i] for i in check.places if i < len(op.inputs))
        depends = self.on(op.inputs)
        graphs = _functions(op)
        return any(needs_checks(graph, graph.inputs if depends else ()) for graph in graphs)


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
    check = kernels.check_of(op)
    if check is not None and dependent.takes_places(op):
        return indices.checked(check, op, inputs, lambda safe: _create(op, safe))
    axis = axis_of_one_channel(op)
    if axis is not None:
        return _create(op, of_two_channels(*inputs, axis))
    if not _functions(op):
        return _create(op, inputs)

    def run(name, arguments):
        graph = function_in(op.graph, op.get_attr(name).name) if isinstance(name, str) else name
        values = {t.name: value for t, value in zip(graph.inputs, arguments, strict=True)}
        return _emit(graph, values, _Dependent(graph, graph.inputs))

    if op.type in _CALLS:
        return run("f", inputs)
    if op.type in _LOOPS:
        return list(
            tf.while_loop(
                lambda *state: tf.reshape(run("cond", state)[0], []),
                lambda *state: run("body", state),
                inputs,
                shape_invariants=[t.shape for t in op.outputs],
                parallel_iterations=op.get_attr("parallel_iterations"),
            )
        )
    if op.type in _CONDITIONALS:
        names = ("then_branch", "else_branch")
        return list(tf.cond(inputs[0], *(lambda n=n: run(n, inputs[1:]) for n in names)))
    if op.type in _CASES:
        branches = [lambda g=g: run(g, inputs[1:]) for g in _functions(op)]
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
